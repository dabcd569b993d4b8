# SPDX-License-Identifier: Apache-2.0
"""Threads that serve remote calls, one request after the other.

One of them listens at a time: it has the turn. It keeps the turn while it runs the function that was asked for, so that
the usual short call wakes nobody, and listens on afterwards. A function that lasts, or itself calls another rank,
loses the turn to the next thread, because it may wait for a call that comes here.
"""

import contextlib
import threading

from . import frames
from .memory import Room, room_of

_MOST_THREADS = 64
_LOOK_SECONDS = 0.001  # A function that runs at two looks lasts.
_LOOKS_IN_VAIN = 50  # Then the watching thread sleeps until there is a request.
_STOP_SECONDS = 1.0


class _Server:
    """One thread: who it is, and how many requests it has had."""

    def __init__(self):
        self.ident, self.requests = threading.get_ident(), 0
        self.room = Room(room_of(frames.FRAME_BYTES))


class Servers:
    """next_request(room): waits for a request; its parts as a tuple, None to stop. serve(*request): answers it."""

    def __init__(self, next_request, serve):
        self._next_request, self._serve = next_request, serve
        self._turn = threading.Lock()  # Held, for whoever has the turn, by no thread in particular.
        self._lock = threading.Lock()
        self._running = None  # The server that runs a function and still has the turn.
        self._threads = self._idle = self._waiting = 0
        self._is_closing = False
        self._has_requests = threading.Event()
        self._add_thread()
        threading.Thread(target=self._watch, name="ivy-rpc-watch", daemon=True).start()

    def _add_thread(self):
        with self._lock:
            if self._threads - self._waiting >= _MOST_THREADS or self._is_closing:
                return
            self._threads += 1
            number = self._threads
        threading.Thread(target=self._run, name=f"ivy-rpc-{number}", daemon=True).start()

    def _run(self):
        server = _Server()
        try:
            while self._take_turn() and self._serve_while_it_has_the_turn(server):
                pass
        finally:
            with self._lock:
                self._threads -= 1

    def _take_turn(self):
        with self._lock:
            self._idle += 1
        self._turn.acquire()
        with self._lock:
            self._idle -= 1
        return True

    # Returns False if the thread must stop. In any case the thread no longer has the turn afterwards.
    def _serve_while_it_has_the_turn(self, server):
        while True:
            try:
                request = self._next_request(server.room)
            except Exception:  # noqa: BLE001 - the group is broken; callers are told by their own calls.
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
            except Exception:  # noqa: BLE001 - the caller is gone, or the group broken: then the next receive says so.
                pass
            with self._lock:
                if self._running is not server:
                    return True
                self._running = None

    def pass_turn_on(self):
        """Called by a thread that is about to wait: another one listens, if this one serves and has the turn."""
        server = self._running
        if server is not None and server.ident == threading.get_ident():
            self._pass_on(server, server.requests)

    @contextlib.contextmanager
    def waiting(self):
        """For a thread that serves and waits for another rank's servers: it does not count among the most there may be."""
        with self._lock:
            self._waiting += 1
        try:
            self.pass_turn_on()
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _pass_on(self, server, requests):
        with self._lock:
            if self._running is not server or server.requests != requests:
                return
            self._running = None
            is_last = self._idle == 0
        self._turn.release()
        if is_last:
            self._add_thread()

    def _watch(self):
        seen, in_vain = None, 0
        pause = threading.Event()
        while not self._is_closing:
            server = self._running
            now = server and (server, server.requests)
            in_vain = in_vain + 1 if now is None else 0
            if now is not None and now == seen:
                self._pass_on(*now)
            if in_vain > _LOOKS_IN_VAIN:
                self._has_requests.clear()
                # A request that came meanwhile may not have seen that.
                if self._running is None:
                    self._has_requests.wait()
                in_vain = 0
            seen = now
            pause.wait(_LOOK_SECONDS)

    def stop(self, stop_one):
        """Ends the threads; stop_one(): makes next_request of one of them return None. False: a function still runs."""
        self._is_closing = True
        self._has_requests.set()
        while self._threads:
            before = self._threads
            running = self._running
            if running is not None:
                self._pass_on(running, running.requests)
            try:
                stop_one()
            except Exception:  # noqa: BLE001 - a broken group ends the threads by itself.
                pass
            for _ in range(round(_STOP_SECONDS / 0.005)):
                if self._threads < before:
                    break
                threading.Event().wait(0.005)
            else:
                return False  # Its thread is a daemon.
        return True
