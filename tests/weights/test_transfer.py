"""Weights from process to process: whole, on time, and nobody waits for one that is gone."""

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


def test_weights_come_out_of_a_piece_as_they_went_in_also_after_it_was_closed():
    taken = [unpacked(piece.place(), piece.expected, CPU) for piece in packed(WEIGHTS)]
    assert [len(piece) for piece in taken] == [3, 1, 2]
    assert_equal([named for piece in taken for named in piece])


def test_a_piece_is_gone_once_it_is_closed_and_where_its_maker_stops_early():
    places = []
    for piece in packed(WEIGHTS):
        places.append((piece.place(), piece.expected))
        if len(places) == 2:
            break
    del piece
    for place in places:
        with pytest.raises(FileNotFoundError):
            unpacked(*place, CPU)


def test_each_worker_takes_all_weights_from_the_rank_beside_it_again_and_again():
    meeting = IpcMeeting("test", (1, 0, 1), on_accelerators=False)
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


def receive_all(meeting: IpcMeeting, device: torch.device, found) -> None:
    """A worker that says what it has been given."""
    receiver = meeting.receiver(0)
    for _ in range(2):
        found.put(checksum(list(receiver.receive((), device)), torch.float32))


def test_another_process_takes_the_same_weights_on_the_same_device():
    """Where there is a GPU, by CUDA IPC."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    meeting = IpcMeeting("device", (0,), on_accelerators=device.type == "cuda")
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    worker = context.Process(target=receive_all, args=(meeting, device, found))
    worker.start()
    sender = meeting.sender(0)
    for step in range(2):
        weights = [(name, tensor.float().to(device) + step) for name, tensor in WEIGHTS]
        send(sender, weights)
        assert found.get(timeout=60) == checksum(weights, torch.float32)
    worker.join()
    assert worker.exitcode == 0


def receive_one(meeting: IpcMeeting) -> None:
    """A worker that ends in the middle of a transfer."""
    next(iter(IncomingWeights(meeting, 0, ())))


def test_a_sender_learns_of_a_worker_that_ends_and_a_worker_of_a_sender():
    meeting = IpcMeeting("ends", (0,), on_accelerators=False)
    worker = multiprocessing.get_context("spawn").Process(target=receive_one, args=(meeting,))
    worker.start()
    sender = meeting.sender(0)
    with pytest.raises(RuntimeError, match="the other end of a transfer of weights was lost"):
        send(sender, WEIGHTS)
    worker.join()

    threading.Thread(target=lambda: meeting.sender(0)).start()
    receiver = meeting.receiver(0)
    with pytest.raises(RuntimeError, match="the other end of a transfer of weights was lost: EOFError"):
        list(receiver.receive((), CPU))


def test_a_sender_learns_of_a_worker_that_gives_up(monkeypatch):
    meeting = IpcMeeting("gives up", (0,), on_accelerators=False)

    def give_up() -> None:
        for _ in meeting.receiver(0).receive((), CPU):
            break

    worker = threading.Thread(target=give_up)
    worker.start()
    with pytest.raises(RuntimeError, match="was lost"):
        send(meeting.sender(0), WEIGHTS)
    worker.join()


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_nobody_waits_longer_than_the_timeout_for_one_that_never_comes(end, monkeypatch):
    for timeout in ("TIMEOUT", "SENDER_TIMEOUT"):
        monkeypatch.setattr(ipc, timeout, timedelta(seconds=0.2))
    with pytest.raises(RuntimeError, match="was lost"):
        getattr(IpcMeeting("nobody", (0,), on_accelerators=False), end)(0)


def test_nobody_waits_longer_than_the_timeout_for_an_answer(monkeypatch):
    monkeypatch.setattr(ipc, "SENDER_TIMEOUT", timedelta(seconds=0.5))
    meeting = IpcMeeting("silent", (0,), on_accelerators=False)
    receivers = []
    worker = threading.Thread(target=lambda: receivers.append(meeting.receiver(0)))  # which never takes anything
    worker.start()
    sender = meeting.sender(0)
    with pytest.raises(RuntimeError, match="no answer within 0.5 s"):
        send(sender, WEIGHTS)
    worker.join()


def test_another_users_process_is_not_answered(monkeypatch):
    meeting = IpcMeeting("other user", (0,), on_accelerators=False)
    worker = threading.Thread(target=lambda: pytest.raises(RuntimeError, meeting.receiver, 0))
    monkeypatch.setattr(ipc.os, "getuid", lambda: 12345)
    worker.start()
    with pytest.raises(RuntimeError, match="answers where weights are handed over"):
        meeting.sender(0)
    worker.join()
