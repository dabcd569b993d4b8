// SPDX-License-Identifier: Apache-2.0
// Ranks, found from the store's text.
#include "launcher/hang/rank_names.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

struct HostRow {
  const char* name;
  std::vector<std::string> addresses;
  bool reaches_by_loopback;
  std::vector<std::pair<std::uint32_t, int>> workers;  // Rank and pid.
};

ctl::StoreDescription job_of(const std::vector<HostRow>& rows) {
  ctl::StoreDescription store;
  for (const HostRow& row : rows) {
    ctl::StorePeer& host = *store.add_hosts();
    host.set_name(row.name);
    for (const std::string& address : row.addresses) host.add_addresses(address);
    host.set_reaches_by_loopback(row.reaches_by_loopback);
    for (const auto& [rank, pid] : row.workers) {
      ctl::StoreWorker& worker = *host.add_workers();
      worker.set_rank(rank);
      worker.set_pid(pid);
    }
  }
  return store;
}

ctl::StoreDescription two_hosts() {
  // Pid 71 exists on both.
  return job_of({{"node1", {"10.0.0.1", "fd00::1"}, true, {{0, 70}, {1, 71}}},
                 {"node2", {"10.0.0.2"}, false, {{2, 71}, {3, 72}}}});
}

struct Row {
  const char* printed;
  const char* shown;
};

void expect_rows(const ctl::StoreDescription& store, const std::vector<Row>& rows) {
  for (const Row& row : rows) EXPECT_EQ(explain_ranks(row.printed, store), row.shown);
}

TEST(RankNames, FindsTheRankOfAProcessOnItsHost) {
  expect_rows(
      two_hosts(),
      {{"key 'k': pid 71 at 10.0.0.2 has waited for 1.0 s; not waiting for it: pid 71 at 10.0.0.1 "
        "(silent for 2.0 s, last: set k2), pid 70 at 127.0.0.1 (silent for 3.0 s, last: connected)",
        "key 'k': rank 2 (host node2, pid 71) has waited for 1.0 s; not waiting for it: rank 1 "
        "(host node1, pid 71) (silent for 2.0 s, last: set k2), rank 0 (host node1, pid 70) "
        "(silent for 3.0 s, last: connected); not connected: rank 3"},
       {"key 'a': pid 70 at [fd00::1] has waited for 1.0 s\nkey 'b': pid 72 at 10.0.0.2, rank 9 "
        "have waited",
        "key 'a': rank 0 (host node1, pid 70) has waited for 1.0 s\nkey 'b': rank 3 (host node2, "
        "pid 72), rank 9 have waited"}});
}

TEST(RankNames, OmitsUncertainNames) {
  expect_rows(two_hosts(),
              {// Another process of a host, perhaps started by one of its ranks.
               {"key 'k': pid 99 at 10.0.0.2 has",
                "key 'k': pid 99 at 10.0.0.2 (host node2, ranks 2-3) has"},
               // A version of torch that does not send its pid.
               {"key 'k': a client at 10.0.0.1:512 has",
                "key 'k': a client at 10.0.0.1:512 (host node1, ranks 0-1) has"},
               // An unknown address; a process of the other host; a key that looks like a client.
               {"key 'k': pid 70 at 10.0.0.9 has", "key 'k': pid 70 at 10.0.0.9 has"},
               {"key 'k': pid 72 at 127.0.0.1 has",
                "key 'k': pid 72 at 127.0.0.1 (host node1, ranks 0-1) has"},
               {"key 'pid 70 at 10.0.0.1': rank 4 has", "key 'pid 70 at 10.0.0.1': rank 4 has"},
               {"key 'k': pid 99999999999 at 10.0.0.1", "key 'k': pid 99999999999 at 10.0.0.1"},
               {"key 'k': pid 70 behind 10.0.0.1", "key 'k': pid 70 behind 10.0.0.1"},
               {"key 'k': pid ", "key 'k': pid "},
               {"", ""},
               {"store: no blocked requests", "store: no blocked requests"}});
  // Two machines with the same address, as behind a gateway: it could be either.
  expect_rows(job_of({{"a", {"10.0.0.1"}, true, {{0, 5}}}, {"b", {"10.0.0.1"}, true, {{1, 5}}}}),
              {{"key 'k': pid 5 at 10.0.0.1 has", "key 'k': pid 5 at 10.0.0.1 has"}});
}

TEST(RankNames, DistinguishesFakeHostsByTheirProcesses) {
  expect_rows(job_of({{"h0", {"10.0.0.1"}, true, {{0, 5}}}, {"h1", {"10.0.0.1"}, true, {{1, 6}}}}),
              {{"key 'k': pid 6 at 127.0.0.1, a client at 127.0.0.1:7 have",
                "key 'k': rank 1 (host h1, pid 6), a client at 127.0.0.1:7 have"}});
}

TEST(RankNames, OmitsTheHostOnOneHost) {
  expect_rows(job_of({{"here", {}, true, {{0, 5}, {1, 0}}}}),
              {{"key 'k': a client at 127.0.0.1:7 has", "key 'k': a client at 127.0.0.1:7 has"},
               {"key 'k': pid 5 at 127.0.0.1 has", "key 'k': rank 0 (host here, pid 5) has"}});
}

TEST(RankNames, NamesUnconnectedRanksIfAllOthersAreKnown) {
  const std::string everybody = " has waited for 1.0 s; all connected clients are blocked on it";
  ctl::StoreDescription store = two_hosts();
  EXPECT_EQ(
      explain_ranks("key 'k': rank 1, pid 70 at 10.0.0.1" + everybody, store),
      "key 'k': rank 1, rank 0 (host node1, pid 70)" + everybody + "; not connected: ranks 2-3");
  EXPECT_EQ(
      explain_ranks("key 'k': rank 1; not waiting for it: rank 0 (silent), rank 3 (silent)", store),
      "key 'k': rank 1; not waiting for it: rank 0 (silent), rank 3 (silent); not "
      "connected: rank 2");
  // An unknown client could be any rank; some clients are not named; a barrier names its members
  // itself.
  for (const std::string& line :
       {"key 'k': rank 1, pid 99 at 10.0.0.9" + everybody,
        "key 'k': rank 1, a client at 10.0.0.9:1" + everybody,
        "key 'k': rank 1 and 2 more" + everybody,
        "barrier 'b' of 3: rank 1; these members have not arrived: 0, 2" + std::string()})
    EXPECT_EQ(explain_ranks(line, store), line);
  store.mutable_hosts(1)->mutable_workers(0)->set_ended(true);
  EXPECT_EQ(explain_ranks("key 'k': rank 0" + everybody + "\nkey 'l': rank 1" + everybody, store),
            "key 'k': rank 0" + everybody + "; not connected: ranks 1,3\nkey 'l': rank 1" +
                everybody + "; not connected: ranks 0,3\nrank 2 has exited");
}

TEST(RankNames, NamesRanksThatHaveExited) {
  ctl::StoreDescription store = two_hosts();
  store.mutable_hosts(0)->mutable_workers(1)->set_ended(true);
  EXPECT_EQ(explain_ranks("store: no blocked requests", store),
            "store: no blocked requests\nrank 1 has exited");
  store.mutable_hosts(1)->mutable_workers(0)->set_ended(true);
  EXPECT_EQ(explain_ranks("store: no blocked requests", store),
            "store: no blocked requests\nranks 1-2 have exited");
}

TEST(RankNames, IndentsEveryLine) { EXPECT_EQ(indented("a\nb"), "  a\n  b"); }

}  // namespace
}  // namespace ivy
