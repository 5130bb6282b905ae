"""Records between parent and child: what isn't exactly one is refused."""

import os
import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autokernel.judge import protocol
from autokernel.judge.protocol import (
    Ack,
    ChannelClosed,
    Control,
    ControlRequest,
    DeadlinePassed,
    Operation,
    Problem,
    ProtocolError,
    Reply,
    Request,
    Status,
)

NONCE = bytes(range(16))


@given(
    st.sampled_from(Operation), st.binary(min_size=16, max_size=16), st.integers(0, 65535), st.integers(0, 2**64 - 1)
)
def test_a_request_comes_back_as_it_was(operation, nonce, first, calls):
    request = Request(operation, nonce, first, calls)
    assert Request.decode(request.encode()) == request


@given(st.sampled_from(Status), st.sampled_from(Problem), st.floats(0, 1e9), st.text(max_size=5000))
def test_a_reply_of_any_text_fits_its_record(status, problem, claimed, text):
    data = Reply(status, NONCE, problem, claimed, text).encode()
    assert len(data) == protocol.REPLY_BYTES
    read = Reply.decode(data, NONCE)
    assert (read.status, read.problem, read.claimed_seconds) == (status, problem, claimed)


@given(st.binary(max_size=3000))
def test_bytes_at_random_are_no_reply(data):
    with pytest.raises(ProtocolError):
        Reply.decode(data, NONCE)


@given(st.integers(0, 31), st.integers(1, 255))
def test_a_damaged_head_is_refused_or_changes_a_claim_only(place, flip):
    data = bytearray(Reply(Status.done, NONCE, claimed_seconds=0.5).encode())
    data[place] ^= flip
    try:
        read = Reply.decode(bytes(data), NONCE)
    except ProtocolError:
        return
    assert read.nonce == NONCE and place in range(4, 16)


@pytest.mark.parametrize("claimed", [float("nan"), float("inf"), -1.0])
def test_a_claimed_time_must_be_a_time(claimed):
    with pytest.raises(ProtocolError):
        Reply.decode(Reply(Status.done, NONCE, claimed_seconds=claimed).encode(), NONCE)


def test_a_reply_to_another_request_is_refused():
    with pytest.raises(ProtocolError, match="another request"):
        Reply.decode(Reply(Status.done, bytes(16)).encode(), NONCE)


def test_terminal_escapes_do_not_survive():
    text = Reply.decode(Reply(Status.failed, NONCE, text="a\x1b[2Jb\nc\0d").encode(), NONCE).text
    assert "\x1b" not in text and "\0" not in text and "a" in text and "\nc" in text


def test_control_records_come_back_as_they_were():
    assert ControlRequest.decode(ControlRequest(Control.freeze, NONCE).encode()).operation is Control.freeze
    assert Ack.decode(Ack(True, NONCE, 9, 3).encode(), NONCE) == Ack(True, NONCE, 9, 3)
    with pytest.raises(ProtocolError):
        Ack.decode(Ack(True, NONCE).encode(), bytes(16))


@pytest.fixture
def sockets():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    protocol.stamp_senders(ours)
    with ours, theirs:
        yield ours, theirs


def test_the_kernel_says_who_sent_a_packet(sockets):
    ours, theirs = sockets
    pid = os.fork()
    if pid == 0:
        theirs.send(b"x" * 8)
        os._exit(0)
    assert protocol.receive(ours, 8, time.monotonic() + 5) == (b"x" * 8, pid)
    os.waitpid(pid, 0)


def test_packets_of_another_size_are_refused(sockets):
    ours, theirs = sockets
    for size in (7, 9):
        theirs.send(b"x" * size)
        with pytest.raises(ProtocolError, match="bytes"):
            protocol.receive(ours, 8, time.monotonic() + 5)


def test_descriptors_sent_along_are_not_taken(sockets):
    ours, theirs = sockets
    before = len(os.listdir("/proc/self/fd"))
    with open(os.devnull) as file:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", file.fileno(), file.fileno()))
        theirs.sendmsg([b"x" * 8], [rights])
    assert protocol.receive(ours, 8, time.monotonic() + 5)[0] == b"x" * 8
    assert len(os.listdir("/proc/self/fd")) == before


def test_silence_and_a_closed_channel_have_different_names(sockets):
    ours, theirs = sockets
    with pytest.raises(DeadlinePassed):
        protocol.receive(ours, 8, time.monotonic() + 0.01)
    theirs.close()
    with pytest.raises(ChannelClosed):
        protocol.receive(ours, 8, time.monotonic() + 5)
