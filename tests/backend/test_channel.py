"""Messages arrive whole and in order, however the socket cuts them."""

from __future__ import annotations

import selectors
import socket
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.backend._channel import OUT_OF_BAND, Channel, MessageKind, dumps, loads

messages = st.lists(
    st.tuples(st.sampled_from(MessageKind), st.lists(st.binary(max_size=5000), min_size=1, max_size=100)),
    max_size=8,
)


@given(messages)
def test_messages_arrive_as_sent(sent: list[tuple[MessageKind, list[bytes]]]) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        left.setblocking(False)
        right.setblocking(False)
        sender, receiver = Channel(left), Channel(right)
        for kind, parts in sent:
            sender.send(kind, parts)
        received = []
        while len(received) < len(sent):
            sender.flush()
            if (message := receiver.receive()) is not None:
                received.append((message[0], [bytes(part) for part in message[1]]))
        assert received == sent
        assert sender.flush()


def test_a_full_socket_keeps_the_rest_until_it_has_room() -> None:
    left, right = socket.socketpair()
    with left, right, selectors.DefaultSelector() as selector:
        left.setblocking(False)
        sender, receiver = Channel(left), Channel(right)
        data = np.arange(1_000_000, dtype=np.int32)
        assert not sender.send(MessageKind.TASK, dumps(data, copy=True))
        results = []
        thread = threading.Thread(target=lambda: results.append(receiver.receive()))
        thread.start()
        selector.register(left, selectors.EVENT_WRITE)
        while not sender.flush():
            selector.select()
        thread.join()
        kind, parts = results[0]
        assert kind is MessageKind.TASK
        assert np.array_equal(loads(parts), data)


def test_the_end_of_the_channel_is_an_error_also_in_the_middle_of_a_message() -> None:
    left, right = socket.socketpair()
    with right:
        Channel(left).send(MessageKind.DONE, [b"whole"])
        left.sendall(b"\1\0\0")
        left.close()
        receiver = Channel(right)
        assert receiver.receive() == (MessageKind.DONE, [b"whole"])
        with pytest.raises(EOFError, match="the other end of the channel is closed"):
            receiver.receive()


def test_large_buffers_travel_beside_the_pickle() -> None:
    small, large = np.zeros(OUT_OF_BAND - 1, np.uint8), np.zeros(OUT_OF_BAND, np.uint8)
    parts = dumps({"small": small, "large": large}, copy=True)
    assert [len(part) >= OUT_OF_BAND for part in parts[1:]] == [True]
    large += 1
    assert loads(parts)["large"].sum() == 0
    views = dumps(large, copy=False)
    large += 1
    assert loads(views).sum() == 2 * OUT_OF_BAND
