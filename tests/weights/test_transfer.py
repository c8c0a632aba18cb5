"""Weights arrive whole and on time in another process, and no process waits for one that has ended."""

import multiprocessing
import threading
from datetime import timedelta

import pytest
import torch

from rlanything.weights.checksum import checksum
from rlanything.weights.transfer import IncomingWeights, NoSender, ipc, pieces
from rlanything.weights.transfer.ipc import IpcMeeting
from rlanything.weights.transfer.pieces import packed, unpacked

CPU = torch.device("cpu")
WEIGHTS = [
    ("a", torch.randn(3, 5).to(torch.bfloat16)),
    ("b", torch.randn(7)),
    ("scalar", torch.tensor(2.5)),
    ("c", torch.randn(300, 100).t()),  # larger than a piece, and not contiguous
    ("d", torch.arange(9)),
    ("empty", torch.empty(0, 3)),
]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 10)


def assert_equal(taken) -> None:
    assert [name for name, _ in taken] == [name for name, _ in WEIGHTS]
    for (_, ours), (_, theirs) in zip(WEIGHTS, taken, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def send(sender, weights) -> None:
    for name, tensor in weights:
        sender.send(name, tensor)
    sender.finish()


def test_weights_come_out_of_a_piece_unchanged_even_after_it_is_closed():
    taken = [unpacked(piece.handle(), piece.expected, CPU) for piece in packed(WEIGHTS)]
    assert [len(piece) for piece in taken] == [3, 1, 2]
    assert_equal([named for piece in taken for named in piece])


def test_a_piece_is_gone_once_it_is_closed_or_its_maker_stops_early():
    places = []
    for piece in packed(WEIGHTS):
        places.append((piece.handle(), piece.expected))
        if len(places) == 2:
            break
    del piece
    for place in places:
        with pytest.raises(FileNotFoundError):
            unpacked(*place, CPU)


def test_each_worker_takes_all_weights_from_its_rank_repeatedly():
    meeting = IpcMeeting(name="test", senders=(1, 0, 1), on_accelerators=False)
    assert isinstance(meeting.sender(2), NoSender)

    def serve(rank: int) -> None:
        sender = meeting.sender(rank)
        for _ in range(2):
            send(sender, WEIGHTS)

    taken: dict[int, list] = {}

    def take(worker: int) -> None:
        receiver = meeting.receiver(worker)
        taken[worker] = [*receiver.receive((), CPU), *receiver.receive((), CPU)]

    threads = [threading.Thread(target=take, args=(i,)) for i in range(3)]
    threads += [threading.Thread(target=serve, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for worker in range(3):
        assert_equal(taken[worker][: len(WEIGHTS)])
        assert_equal(taken[worker][len(WEIGHTS) :])


def receive_all(meeting: IpcMeeting, device: torch.device, checksums) -> None:
    """A worker that reports the checksum of what it received."""
    receiver = meeting.receiver(0)
    for _ in range(2):
        checksums.put(checksum(list(receiver.receive((), device)), torch.float32))


def test_another_process_takes_the_same_weights_on_the_same_device():
    """By CUDA IPC if there is a GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    meeting = IpcMeeting(name="device", senders=(0,), on_accelerators=device.type == "cuda")
    context = multiprocessing.get_context("spawn")
    checksums = context.Queue()
    worker = context.Process(target=receive_all, args=(meeting, device, checksums))
    worker.start()
    sender = meeting.sender(0)
    for step in range(2):
        weights = [(name, tensor.float().to(device) + step) for name, tensor in WEIGHTS]
        send(sender, weights)
        assert checksums.get(timeout=60) == checksum(weights, torch.float32)
    worker.join()
    assert worker.exitcode == 0


def receive_one(meeting: IpcMeeting) -> None:
    """A worker that ends in the middle of a transfer."""
    next(iter(IncomingWeights(meeting=meeting, first_worker=0, expected=())))


def test_sender_and_worker_raise_if_the_other_one_ends():
    meeting = IpcMeeting(name="ends", senders=(0,), on_accelerators=False)
    worker = multiprocessing.get_context("spawn").Process(target=receive_one, args=(meeting,))
    worker.start()
    sender = meeting.sender(0)
    with pytest.raises(RuntimeError, match="the connection to the other process failed"):
        send(sender, WEIGHTS)
    worker.join()

    threading.Thread(target=lambda: meeting.sender(0)).start()
    receiver = meeting.receiver(0)
    with pytest.raises(RuntimeError, match="the connection to the other process failed: EOFError"):
        list(receiver.receive((), CPU))


def test_a_sender_raises_if_the_worker_stops_taking_weights(monkeypatch):
    meeting = IpcMeeting(name="gives up", senders=(0,), on_accelerators=False)

    def give_up() -> None:
        for _ in meeting.receiver(0).receive((), CPU):
            break

    worker = threading.Thread(target=give_up)
    worker.start()
    with pytest.raises(RuntimeError, match="connection to the other process failed"):
        send(meeting.sender(0), WEIGHTS)
    worker.join()


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_connecting_raises_after_the_timeout_if_the_other_end_never_comes(end, monkeypatch):
    for timeout in ("TIMEOUT", "SENDER_TIMEOUT"):
        monkeypatch.setattr(ipc, timeout, timedelta(seconds=0.2))
    with pytest.raises(RuntimeError, match="connection to the other process failed"):
        getattr(IpcMeeting(name="nobody", senders=(0,), on_accelerators=False), end)(0)


def test_a_sender_raises_after_the_timeout_if_a_worker_does_not_answer(monkeypatch):
    monkeypatch.setattr(ipc, "SENDER_TIMEOUT", timedelta(seconds=0.5))
    meeting = IpcMeeting(name="silent", senders=(0,), on_accelerators=False)
    receivers = []
    worker = threading.Thread(target=lambda: receivers.append(meeting.receiver(0)))  # it never takes anything
    worker.start()
    sender = meeting.sender(0)
    with pytest.raises(RuntimeError, match="no answer within 0.5 s"):
        send(sender, WEIGHTS)
    worker.join()


def test_a_process_of_another_user_is_refused(monkeypatch):
    meeting = IpcMeeting(name="other user", senders=(0,), on_accelerators=False)
    worker = threading.Thread(target=lambda: pytest.raises(RuntimeError, meeting.receiver, 0))
    monkeypatch.setattr(ipc.os, "getuid", lambda: 12345)
    worker.start()
    with pytest.raises(RuntimeError, match="found a process of user"):
        meeting.sender(0)
    worker.join()
