"""torchrun --rdzv-backend ivy: nodes meet in a store of ours (ivy-rendezvous serve --torch, or a job's).

What stands in the store is text and JSON, never a pickle. One meeting is a round; `round` is the
number of the newest one, and round N's keys, below ivy.torchrun/RUN_ID/, are

    N/arrived   counts the nodes that came; each keeps its number
    N/node/I    what node I says of itself
    N/closed    how many take part: MAX, or those of MIN or more who came before the last call
    N/here/I    node I has seen that; a round in which one has not is left by all
    N/beat/I    counts while node I lives

torchrun's agent loads this by an entry point; workers never do.
"""

import json
import os
import socket
import threading
import time
from datetime import timedelta

_LOOK_SECONDS = 0.1
_HERE_SECONDS = 30.0


class Rounds:
    """The rounds of one run id. `store` has the interface of torch's stores; every wait has a bound."""

    def __init__(self, store, least, most, settings):
        self.store, self.least, self.most = store, least, most
        self.join = float(settings.get("join_timeout", 600))
        self.last_call = float(settings.get("last_call_timeout", 30))
        self.beat = float(settings.get("keep_alive_interval", 5))
        self.beats_missed = int(settings.get("keep_alive_max_attempt", 3))
        self.number, self.count = -1, 0
        self.store.compare_set("round", "", "0")
        self.round = self.newest()
        self.last_beats, self.heard = {}, 0.0

    def newest(self):
        return int(self.store.get("round"))

    def key(self, name):
        return f"{self.round}/{name}"

    def has(self, name):
        return self.store.check([self.key(name)])

    def enter(self, about):
        """The number of this node and what each node says, of a round in which it takes part."""
        if self.number >= 0:
            self.leave()
        deadline = time.monotonic() + self.join
        while True:
            self.number = self.store.add(self.key("arrived"), 1) - 1
            self.store.set(self.key(f"node/{self.number}"), json.dumps(about))
            self.count = self.await_close(deadline)
            if self.number < self.count and self.all_are_here():
                self.last_beats, self.heard = {}, time.monotonic()
                said = [self.store.get(self.key(f"node/{i}")) for i in range(self.count)]
                return self.number, [json.loads(one) for one in said]
            if self.number >= self.count:
                self.await_next(deadline)
            self.leave()

    def await_close(self, deadline):
        """Whoever sees first that it is time closes the round."""
        last_call = None
        while not self.has("closed"):
            now = time.monotonic()
            arrived = int(self.store.add(self.key("arrived"), 0))
            if arrived >= self.least and last_call is None:
                last_call = now + self.last_call
            if arrived >= self.most or (last_call is not None and now >= last_call):
                self.store.compare_set(self.key("closed"), "", str(min(arrived, self.most)))
                break
            if now > deadline:
                raise _error("Timeout", f"{arrived} of {self.least} nodes came in {self.join:g} s (join_timeout): "
                             "start the others with the same --rdzv-id and --rdzv-endpoint")
            self.check_open()
            time.sleep(_LOOK_SECONDS)
        return int(self.store.get(self.key("closed")))

    def all_are_here(self):
        """A node may have died after it came, and a job with it would wait for it in vain."""
        self.store.set(self.key(f"here/{self.number}"), "1")
        keys = [self.key(f"here/{i}") for i in range(self.count)]
        until = time.monotonic() + _HERE_SECONDS
        while not self.store.check(keys):
            if self.newest() > self.round or time.monotonic() > until:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def await_next(self, deadline):
        """This node came when the round had begun: its members see that it waits."""
        while self.newest() == self.round:
            self.check_open()
            if time.monotonic() > deadline:
                raise _error("Timeout", f"the job runs with {self.count} nodes, and made no room in {self.join:g} s "
                             "(join_timeout)")
            time.sleep(_LOOK_SECONDS * 5)

    def leave(self):
        """The next round is the same one for all, whoever leaves first."""
        self.store.compare_set("round", str(self.round), str(self.round + 1))
        self.round = self.newest()

    def waiting(self):
        """How many nodes want another round: members who have left or died, others where there is room."""
        if self.newest() > self.round or self.is_one_dead():
            return 1
        late = int(self.store.add(self.key("arrived"), 0)) - self.count
        return late if late > 0 and self.count < self.most else 0

    def is_one_dead(self):
        now = time.monotonic()
        if now - self.heard < self.beat * self.beats_missed:
            return False
        beats = {i: int(self.store.add(self.key(f"beat/{i}"), 0)) for i in range(self.count) if i != self.number}
        dead = [i for i, beat in beats.items() if self.last_beats.get(i) == beat]
        self.last_beats, self.heard = beats, now
        return bool(dead)

    def close(self):
        self.store.set("over", "1")

    def is_over(self):
        return self.store.check(["over"])

    def check_open(self):
        if self.is_over():
            raise _error("Closed", "the job of this --rdzv-id is over: choose another id")


def _error(kind, text):
    from torch.distributed.elastic import rendezvous

    return getattr(rendezvous, f"Rendezvous{kind}Error")("ivy: " + text)


def _connect(endpoint, timeout):
    """A client of the store. torch says neither where nor why it could not connect."""
    import torch.distributed as dist

    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f'--rdzv-endpoint "{endpoint}": HOST:PORT of a store of ours: ivy-rendezvous serve --torch')
    try:
        return dist.TCPStore(host.strip("[]"), int(port), is_master=False, wait_for_workers=False,
                             timeout=timedelta(seconds=timeout))
    except Exception as error:
        raise _error("Connection", f"no store at {endpoint} after {timeout:g} s; start one: ivy-rendezvous serve "
                     f"--torch ... --torch-peers ... ({str(error).splitlines()[0]})") from error


def _node(params):
    address = params.local_addr or socket.getfqdn()
    return {"host": socket.gethostname(), "address": address, "pid": os.getpid(),
            "rank": int(params.config.get("rank", -1))}


def _order(nodes):
    """The place of each node: by --rdzv-conf rank=R where it is given, else by arrival."""
    given = [i for i, node in enumerate(nodes) if node["rank"] >= 0]
    ranks = [nodes[i]["rank"] for i in given]
    if len(set(ranks)) < len(ranks):
        raise ValueError("ivy: two nodes have one rank: " + ", ".join(
            f"{node['host']} rank={node['rank']}" for node in nodes if node["rank"] >= 0))
    order = sorted(given, key=lambda i: nodes[i]["rank"])
    order += [i for i in range(len(nodes)) if nodes[i]["rank"] < 0]
    return {number: place for place, number in enumerate(order)}


def _make_class():
    import torch.distributed as dist
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

    class IvyRendezvous(RendezvousHandler):
        def __init__(self, params):
            timeout = float(params.config.get("read_timeout", 60))
            self.params = params
            self.prefix = f"ivy.torchrun/{params.run_id}"
            # The agent waits in its store, so its connection is not ours.
            self.agents_store = _connect(params.endpoint, timeout)
            self.rounds = Rounds(dist.PrefixStore(self.prefix, _connect(params.endpoint, timeout)),
                                 params.min_nodes, params.max_nodes, params.config)
            self.stop = threading.Event()

        def get_backend(self):
            return "ivy"

        def get_run_id(self):
            return self.params.run_id

        @property
        def use_agent_store(self):
            # A job's workers shall not find keys of another attempt there.
            return False

        def next_rendezvous(self):
            self.rounds.check_open()
            self.end_beats()
            number, nodes = self.rounds.enter(_node(self.params))
            self.begin_beats()
            rank = _order(nodes)[number]
            store = dist.PrefixStore(f"{self.prefix}/{self.rounds.round}/agents", self.agents_store)
            info = RendezvousStoreInfo.build(rank, store, self.params.local_addr)
            return RendezvousInfo(store, rank, len(nodes), info)

        def begin_beats(self):
            self.stop = threading.Event()
            key = f"{self.prefix}/{self.rounds.key(f'beat/{self.rounds.number}')}"
            store = _connect(self.params.endpoint, 60)
            threading.Thread(target=self.beat, args=(store, key, self.stop), daemon=True).start()

        def beat(self, store, key, stop):
            try:
                while not stop.wait(self.rounds.beat / 2):
                    store.add(key, 1)
            except Exception:  # The store is gone; the agent's next call says so.
                pass

        def end_beats(self):
            self.stop.set()

        def is_closed(self):
            return self.rounds.is_over()

        def set_closed(self):
            self.rounds.close()

        def num_nodes_waiting(self):
            return self.rounds.waiting()

        def shutdown(self):
            self.end_beats()
            try:
                self.rounds.close()
                return True
            except Exception:  # The store went first; there is nobody to tell.
                return False

    return IvyRendezvous


def handler():
    """The entry point's: what makes a handler of torchrun's parameters."""
    return lambda params: _make_class()(params)
