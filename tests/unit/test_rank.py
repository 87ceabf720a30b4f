"""How the processes of a group find one another."""

from __future__ import annotations

import os
import socket

import pytest

from evr1_core.cluster import rank


def test_gloo_listens_where_the_rendezvous_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(rank, "on_loopback", lambda name: True)
    rank.name_interface("127.0.0.1")
    loopback = os.environ["GLOO_SOCKET_IFNAME"]
    assert loopback == rank.interface_of("127.0.0.1") != ""
    assert loopback in {name for _, name in socket.if_nameindex()}


def test_what_is_set_or_resolved_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.setattr(rank, "on_loopback", lambda name: True)
    rank.name_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(rank, "on_loopback", lambda name: False)
    rank.name_interface("127.0.0.1")
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_addresses_of_no_interface_and_names_of_no_address() -> None:
    assert rank.interface_of("203.0.113.255") == ""  # kept for documentation, RFC 5737
    assert rank.on_loopback("localhost") and rank.on_loopback("no-such-machine.invalid")
