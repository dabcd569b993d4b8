# SPDX-License-Identifier: Apache-2.0
"""Threads that execute requests, one request at a time each.

One thread at a time receives requests: it has the turn. It keeps the turn while it executes a request, so that in the
usual case, a short function, no other thread wakes up, and then receives the next request. If the function takes long,
or waits for another rank, the turn passes to another thread: what the function waits for may need a call to this rank.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from . import frames
from .memory import Room, room_of

_MOST_THREADS = 64
_POLL_SECONDS = 0.001  # A function takes long if it runs at two successive polls.
_IDLE_POLLS = 50  # After so many polls without a request, the watching thread sleeps until there is one.
_STOP_SECONDS = 1.0


class _Server:
    """One thread: its identity, and the number of requests that it has received."""

    def __init__(self) -> None:
        self.ident, self.requests = threading.get_ident(), 0
        self.room = Room(room_of(frames.FRAME_BYTES))


class Servers:
    """next_request(room): blocks until a request arrives, and returns the arguments for `serve`; None: the thread must
    stop. serve(...): executes it and sends the reply."""

    def __init__(self, next_request: Callable[[Room], tuple[Any, ...] | None], serve: Callable[..., object]) -> None:
        self._next_request, self._serve = next_request, serve
        self._turn = threading.Lock()  # Held while any thread has the turn; not necessarily released by the same one.
        self._lock = threading.Lock()
        self._running: _Server | None = None  # The server that executes a request and still has the turn.
        self._threads = self._idle = self._waiting = 0
        self._is_closing = False
        self._has_requests = threading.Event()
        self._add_thread()
        threading.Thread(target=self._watch, name="ivy-rpc-watch", daemon=True).start()

    def _add_thread(self) -> None:
        with self._lock:
            if self._threads - self._waiting >= _MOST_THREADS or self._is_closing:
                return
            self._threads += 1
            number = self._threads
        threading.Thread(target=self._run, name=f"ivy-rpc-{number}", daemon=True).start()

    def _run(self) -> None:
        server = _Server()
        try:
            while self._take_turn() and self._serve_while_it_has_the_turn(server):
                pass
        finally:
            with self._lock:
                self._threads -= 1

    def _take_turn(self) -> bool:
        with self._lock:
            self._idle += 1
        self._turn.acquire()
        with self._lock:
            self._idle -= 1
        return True

    # Returns False if the thread must stop. In any case the thread no longer has the turn afterwards.
    def _serve_while_it_has_the_turn(self, server: _Server) -> bool:
        while True:
            try:
                request = self._next_request(server.room)
            except Exception:  # noqa: BLE001 - the group is broken; callers get the error from their own calls.
                request = None
            if request is None:
                self._turn.release()
                return False
            server.requests += 1
            self._running = server
            if not self._has_requests.is_set():
                self._has_requests.set()
            try:
                self._serve(*request)
            except Exception:  # noqa: BLE001 - the caller has exited, or the group is broken: the next receive reports it.
                pass
            with self._lock:
                if self._running is not server:
                    return True
                self._running = None

    def pass_turn_on(self) -> None:
        """Called by a thread that is about to block: if it has the turn, another thread takes it."""
        server = self._running
        if server is not None and server.ident == threading.get_ident():
            self._pass_on(server, server.requests)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """For a thread that executes a request and blocks for another rank's servers: does not count towards the limit of
        threads."""
        with self._lock:
            self._waiting += 1
        try:
            self.pass_turn_on()
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _pass_on(self, server: _Server, requests: int) -> None:
        with self._lock:
            if self._running is not server or server.requests != requests:
                return
            self._running = None
            is_last = self._idle == 0
        self._turn.release()
        if is_last:
            self._add_thread()

    def _watch(self) -> None:
        seen, idle_polls = None, 0
        pause = threading.Event()
        while not self._is_closing:
            server = self._running
            now = (server, server.requests) if server is not None else None
            idle_polls = idle_polls + 1 if now is None else 0
            if now is not None and now == seen:
                self._pass_on(*now)
            if idle_polls > _IDLE_POLLS:
                self._has_requests.clear()
                # A request that has arrived just before may have found it still set.
                if self._running is None:
                    self._has_requests.wait()
                idle_polls = 0
            seen = now
            pause.wait(_POLL_SECONDS)

    def stop(self, stop_one: Callable[[], object]) -> bool:
        """Stops the threads. Returns False if a function is still running after 1 s. stop_one(): makes next_request of one
        thread return None."""
        self._is_closing = True
        self._has_requests.set()
        while self._threads:
            before = self._threads
            running = self._running
            if running is not None:
                self._pass_on(running, running.requests)
            try:
                stop_one()
            except Exception:  # noqa: BLE001 - the group is broken, which stops the threads.
                pass
            for _ in range(round(_STOP_SECONDS / 0.005)):
                if self._threads < before:
                    break
                threading.Event().wait(0.005)
            else:
                return False  # Its thread is a daemon.
        return True
