"""Rounds in which processes send bytes to a server process and receive bytes from it, by gRPC.

In a round every other process puts data, the server collects them in order of ranks and publishes
data, and every other process takes these. Data travel in chunks below gRPC's message limit, as
plain bytes, so that no generated code is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from workloads._errors import RankError

CHUNK = 1 << 20
"""Largest message in bytes; gRPC's default limit is 4 MiB."""

_SERVICE = "tracekit.Mailbox"
_DIRECT = [("grpc.enable_http_proxy", 0)]


class Mailbox:
    """gRPC server for data exchanged in rounds: others put data, it publishes data, they take it.

    Parameters
    ----------
    others
        Number of other processes.
    host
        Address of this host to listen on, by default the loopback; the port is a free one.
    """

    def __init__(self, others: int, host: str = "127.0.0.1") -> None:
        self._others = others
        self._changed = threading.Condition()
        self._put: dict[int, bytearray] = {}
        self._published = memoryview(b"")
        self._round = 0
        self._joined: set[int] = set()
        self._lost: list[int] = []
        self._is_open = True
        # Each of the others holds its line, and puts or takes.
        self._server = grpc.server(ThreadPoolExecutor(max_workers=2 * others + 1))
        self._server.add_generic_rpc_handlers([self._handlers()])
        self.address = f"{host}:{self._server.add_insecure_port(f'{host}:0')}"
        self._server.start()

    def await_all(self, patience_s: float) -> None:
        """Wait until all other processes have joined, at most `patience_s` seconds.

        Raises
        ------
        RankError
            If one has not joined in that time; the server is stopped then.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._joined) == self._others, patience_s)
            missing = self._others - len(self._joined)
        if missing:
            self.close()
            raise RankError(f"{missing} processes have not joined within {patience_s:g} s")

    def collect(self) -> list[bytearray]:
        """Wait until all other processes have put data; return the data in order of ranks.

        Raises
        ------
        RankError
            If one of them has left.
        """
        with self._changed:
            self._wait_for(lambda: len(self._put) == self._others)
            found, self._put = self._put, {}
        if len(found) < self._others:
            raise RankError(f"process {self._lost[0]} left before it gave its gradients")
        return [found[rank] for rank in sorted(found)]

    def publish(self, data: memoryview) -> None:
        """Let the other processes take data, and begin the next round.

        The data may be overwritten once all have put data again, since each takes before it puts.
        """
        with self._changed:
            self._published = data
            self._round += 1
            self._changed.notify_all()

    def close(self, patience_s: float = 0) -> None:
        """Stop the server once all other processes have left, or after `patience_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._lost) == self._others, patience_s)
            self._is_open = False
            self._changed.notify_all()
        self._server.stop(grace=1).wait()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true, a process is lost, or the server has stopped."""
        self._changed.wait_for(lambda: condition() or bool(self._lost) or not self._is_open)

    def _handlers(self) -> grpc.GenericRpcHandler:
        calls = {
            "Join": grpc.unary_stream_rpc_method_handler(self._hold),
            "Put": grpc.stream_unary_rpc_method_handler(self._keep),
            "Take": grpc.unary_stream_rpc_method_handler(self._hand_out),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, calls)

    def _hold(self, rank: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Keep a stream to a process open as long as both processes run."""
        number = int(rank)

        def lose() -> None:
            with self._changed:
                self._lost.append(number)
                self._changed.notify_all()

        context.add_callback(lose)
        with self._changed:
            self._joined.add(number)
            self._changed.notify_all()
        yield b""
        with self._changed:
            self._changed.wait_for(lambda: number in self._lost or not self._is_open)

    def _keep(self, chunks: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        rank = int(dict(context.invocation_metadata())["rank"])
        data = bytearray()
        for chunk in chunks:
            data += chunk
        with self._changed:
            self._put[rank] = data
            self._changed.notify_all()
        return b""

    def _hand_out(self, number: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        wanted = int(number)
        with self._changed:
            self._wait_for(lambda: self._round >= wanted)
            if self._round < wanted:
                who = f"process {self._lost[0]}" if self._lost else "the server"
                context.abort(grpc.StatusCode.ABORTED, f"{who} has left")
            published = self._published
        yield from cut(published)


class Courier:
    """gRPC client by which another process puts data into a `Mailbox` and takes data from it.

    Parameters
    ----------
    address
        Host and port of the mailbox.
    rank
        Rank of this process.
    patience_s
        Longest wait for the first response, seconds.

    Raises
    ------
    RankError
        If the mailbox cannot be reached. All methods raise this too.
    """

    def __init__(self, address: str, rank: int, *, patience_s: float = 60) -> None:
        self.rank = rank
        self._address = address
        self._round = 0
        self._channel = grpc.insecure_channel(address, options=_DIRECT)
        self._put = self._channel.stream_unary(f"/{_SERVICE}/Put")
        self._take = self._channel.unary_stream(f"/{_SERVICE}/Take")
        join = self._channel.unary_stream(f"/{_SERVICE}/Join")
        self._line = join(str(rank).encode(), wait_for_ready=True)
        try:
            grpc.channel_ready_future(self._channel).result(timeout=patience_s)
            next(self._line)
        except (grpc.RpcError, grpc.FutureTimeoutError) as error:
            raise self._fault(error) from error

    def put(self, data: memoryview) -> None:
        """Put data for this round."""
        self.put_all([data])

    def put_all(self, pieces: Iterable[memoryview]) -> None:
        """Put data in pieces, fetching each from the iterator when it can be sent."""
        chunks = (chunk for piece in pieces for chunk in cut(piece))
        try:
            self._put(chunks, metadata=[("rank", str(self.rank))])
        except grpc.RpcError as error:
            raise self._fault(error) from error

    def take(self) -> Iterator[bytes]:
        """Wait for the data published in this round, and yield them chunk by chunk."""
        self._round += 1
        try:
            yield from self._take(str(self._round).encode())
        except grpc.RpcError as error:
            raise self._fault(error) from error

    def close(self) -> None:
        """Leave the job."""
        self._line.cancel()
        self._channel.close()

    def _fault(self, error: Exception) -> RankError:
        why = error.details() if isinstance(error, grpc.Call) else "no answer"
        ends = f"process {self.rank} and the parameter server at {self._address}"
        return RankError(f"the connection of {ends} broke ({why})")


def cut(data: memoryview) -> Iterator[bytes]:
    """Yield data in chunks."""
    whole = data.cast("B")
    for start in range(0, len(whole), CHUNK):
        yield bytes(whole[start : start + CHUNK])
