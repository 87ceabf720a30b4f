"""The way of weights from the policy to engines in other processes: bit for bit, in bounded messages, and with an end for everyone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
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


def took(end: WeightsChannel, version: int) -> list[tuple[str, Tensor]]:
    return list(end.receive(version))


def message(future: Future[Any]) -> str:
    with pytest.raises(Evr1Error) as caught:
        future.result(timeout=60)
    return str(caught.value)


def test_weights_arrive_bit_for_bit_in_their_order_and_in_bounded_messages() -> None:
    sent = weights()
    with opened() as (sender, engines, threads):
        for version in (1, 2):
            taking = [threads.submit(took, end, version) for end in engines]
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


KILLED = """
import os, signal, sys
from evr1_core.cluster.channel import WeightsChannel
channel = WeightsChannel.connect(sys.argv[1], 1, 2, timeout=90)
for _ in channel.receive(1):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_engine_that_is_killed_ends_the_update_for_all_and_the_gathering_goes_on_to_its_end() -> None:
    sender = WeightsChannel.listen(2, host="localhost", timeout=90, bucket_bytes=BUCKET)
    gathered: list[str] = []

    def gathering() -> Iterator[tuple[str, Tensor]]:
        for place in range(2000):
            gathered.append(f"weight {place}")
            yield gathered[-1], torch.zeros(BUCKET)

    killed = subprocess.Popen([sys.executable, "-c", KILLED, sender.address])
    try:
        with ThreadPoolExecutor(2) as threads:
            coming = threads.submit(WeightsChannel.connect, sender.address, 0, 2, timeout=90)
            sender.accept()
            other = coming.result(timeout=60)
            taking = threads.submit(took, other, 1)
            with pytest.raises(Evr1Error, match="an engine ended or was silent"):
                sender.send(gathering(), 1)
            assert "the policy or another engine ended" in message(taking)
        assert len(gathered) == 2000
        with pytest.raises(Evr1Error, match="weights can't be sent any more: an engine ended"):
            sender.send(gathering(), 2)
    finally:
        killed.kill()
        killed.wait(timeout=30)


def test_engines_are_told_why_the_policy_stopped_and_can_take_the_next_update() -> None:
    def broken() -> Iterator[tuple[str, Tensor]]:
        yield from weights()[:25]
        raise ValueError("rank 1 is gone")

    with opened() as (sender, engines, threads):
        taking = [threads.submit(took, end, 1) for end in engines]
        with pytest.raises(ValueError, match="rank 1 is gone"):
            sender.send(broken(), 1)
        for one in taking:
            assert "the policy stopped sending weights" in (text := message(one)) and "ValueError: rank 1 is gone" in text
        taking = [threads.submit(took, end, 2) for end in engines]
        sender.send(weights(), 2)
        assert all(len(one.result(timeout=60)) == len(weights()) for one in taking)


def test_another_version_is_refused_and_what_is_silent_is_not_waited_for() -> None:
    with opened(engines=1, timeout=2.0) as (sender, (engine,), threads):
        taking = threads.submit(took, engine, 8)
        with pytest.raises(Evr1Error, match="an engine ended"):
            sender.send(((f"weight {place}", torch.zeros(BUCKET)) for place in range(2000)), 7)
        assert "weights of version 7 came where version 8 was expected" in message(taking)
    with opened(engines=1, timeout=2.0) as (_, (engine,), threads):
        assert "was silent for 2 s" in message(threads.submit(took, engine, 1))


def test_engines_that_do_not_come_are_counted() -> None:
    sender = WeightsChannel.listen(2, host="localhost", timeout=2.0)
    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(WeightsChannel.connect, sender.address, 0, 2, timeout=2.0)
        with pytest.raises(Evr1Error, match="1 of 2 engines did not come"):
            sender.accept()
        assert "engine 0 could not meet the policy and the other engines" in message(coming)
