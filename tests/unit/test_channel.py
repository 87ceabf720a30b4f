"""The way of weights from the policy to engines in other processes: bit for bit, in bounded messages, and with an end for everyone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from evr1_core.cluster.channel import WeightsChannel
from evr1_core.errors import Evr1Error

pytestmark = pytest.mark.timeout(120)
BUCKET = 4096


def weights() -> list[tuple[str, Tensor]]:
    """Many small ones, some of odd sizes, one larger than a bucket, one that isn't contiguous, and edge shapes, in several types."""
    generator = torch.Generator().manual_seed(0)
    small = [(f"layers.{place}.bias", torch.randn(place + 1, generator=generator, dtype=torch.float32)) for place in range(40)]
    large = ("embedding", torch.randn(64, 100, generator=generator).bfloat16())
    turned = ("turned", torch.randn(7, 5, generator=generator).T)
    edges = [
        ("scalar", torch.tensor(3.5)),
        ("empty", torch.zeros(0, 4)),
        ("flags", torch.tensor([True, False, True])),
        ("odd", torch.ones(3).half()),
    ]
    return [*small[:20], large, turned, *edges, *small[20:]]


@contextmanager
def opened(engines: int = 2, timeout: float = 30.0) -> Iterator[tuple[WeightsChannel, list[WeightsChannel], ThreadPoolExecutor]]:
    """A sender, its engines, and threads for all."""
    sender = WeightsChannel.listen(engines, host="localhost", timeout=timeout, bucket_bytes=BUCKET)
    with ThreadPoolExecutor(engines + 1) as threads:
        coming = [threads.submit(WeightsChannel.connect, sender.address, number, engines, timeout=timeout) for number in range(engines)]
        sender.accept()
        ends = [one.result() for one in coming]
        try:
            yield sender, ends, threads
        finally:
            for channel in (sender, *ends):
                channel.close()


def message(future: Future[Any]) -> str:
    with pytest.raises(Evr1Error) as caught:
        future.result(timeout=60)
    return str(caught.value)


def test_weights_arrive_bit_for_bit_in_their_order_and_in_bounded_messages() -> None:
    sent = weights()
    with opened() as (sender, engines, threads):
        for version in (1, 2):
            taking = [threads.submit(lambda end=end: list(end.receive(version))) for end in engines]
            total = sender.send(iter(sent), version)
            assert total == sum(tensor.nbytes for _, tensor in sent)
            for one in taking:
                found = one.result(timeout=60)
                assert [name for name, _ in found] == [name for name, _ in sent]
                for (name, here), (_, there) in zip(found, sent, strict=True):
                    assert here.dtype == there.dtype and torch.equal(here, there), name
        # The large one alone; 40 small ones together, cut where a bucket is full: 3,280 bytes of numbers and up to 15 before each.
        assert sender.messages == 2 * 3 and {end.messages for end in engines} == {sender.messages}
    assert not dist.is_initialized()
