// SPDX-License-Identifier: Apache-2.0
// Decisions of NCCL's part that need no NCCL: findings before init, interfaces, roots, plans. Pure,
// except for sockets on loopback.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "comm/nccl/abandonable_call.h"
#include "comm/nccl/collect_rank_facts.h"
#include "comm/nccl/interface_probe.h"
#include "comm/nccl/kept_queue.h"
#include "comm/nccl/library.h"
#include "comm/nccl/nccl_bootstrap.h"
#include "comm/nccl/preflight.h"
#include "comm/nccl/reduction_plan.h"
#include "comm/nccl/subnets.h"
#include "tests/support/eventually.h"

namespace ivy::comm::nccl {
namespace {

RankFacts healthy(std::int32_t rank) {
  RankFacts facts;
  facts.rank = rank;
  facts.host = rank < 2 ? "node1" : "node2";
  facts.pid = 100 + rank;
  facts.machine = rank < 2 ? "boot-a" : "boot-b";
  facts.nccl_version = 22809;
  facts.nccl_path = "/lib/libnccl.so.2";
  facts.driver_version = 13000;
  facts.uuid = "uuid" + std::to_string(rank);
  facts.bus = "0000:0" + std::to_string(rank) + ":00.0";
  facts.interfaces = {
      {"lo", "127.0.0.1", 8}, {"eth0", "10.0.0.1", 16}, {"docker0", "172.17.0.1", 16}};
  facts.limits.shared_memory_free = 1ULL << 30;
  facts.limits.stack = 8 << 20;
  return facts;
}

std::vector<RankFacts> four() { return {healthy(0), healthy(1), healthy(2), healthy(3)}; }

TEST(KeptQueue, ReturnsElementsInOrderWhileItReusesItsMemory) {
  KeptQueue<int> queue;
  int next_in = 0;
  int next_out = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 3; ++i) queue.push_back(next_in++);
    const int taken = round % 2 == 0 ? 2 : 4;
    for (int i = 0; i < taken; ++i) {
      EXPECT_EQ(queue.front(), next_out++);
      queue.pop_front();
    }
    ASSERT_EQ(queue.size(), static_cast<std::size_t>(next_in - next_out));
  }
  EXPECT_TRUE(queue.empty());
}

TEST(PreflightTest, FindsNothingIfAllFactsAgree) { EXPECT_TRUE(compare_ranks(four()).empty()); }

struct PreflightCase {
  const char* name;
  void (*break_it)(std::vector<RankFacts>& ranks);
  std::int32_t rank;
  std::vector<std::string> says;
  bool is_warning = false;
};

const PreflightCase kCases[] = {
    {"an error of its own",
     [](auto& ranks) {
       ranks[2].error = "no driver";
       ranks[2].error_fix = "get one";
     },
     2,
     {"rank 2 (node2, pid 102): no driver", "get one"}},
    {"another version",
     [](auto& ranks) { ranks[3].nccl_version = 22803; },
     3,
     {"has NCCL 2.28.3", "has 2.28.9", "one version"}},
    {"across 2.23",
     [](auto& ranks) {
       ranks[0].nccl_version = 22105;
       ranks[0].nccl_path = "/old/libnccl.so.2";
     },
     0,
     {"2.21.5 (/old/libnccl.so.2)", "would hang"}},
    {"across 2.29", [](auto& ranks) { ranks[1].nccl_version = 22903; }, 1, {"would hang"}},
    {"one GPU twice",
     [](auto& ranks) { ranks[1].uuid = ranks[0].uuid; },
     0,
     {"the same GPU 0000:00:00.0 as rank 1 (node1, pid 101)", "NCCL_HOSTID"}},
    {"one GPU twice with 2.30",
     [](auto& ranks) {
       for (RankFacts& rank : ranks) rank.nccl_version = 23007;
       ranks[1].uuid = ranks[0].uuid;
     },
     0,
     {"NCCL_MULTI_RANK_GPU_ENABLE=1"}},
    {"an interface that does not exist",
     [](auto& ranks) { ranks[1].variables["NCCL_SOCKET_IFNAME"] = "ens"; },
     1,
     {"NCCL_SOCKET_IFNAME=ens matches no interface", "unset it", "to one of: eth0"}},
    {"no interface",
     [](auto& ranks) { ranks[1].interfaces.clear(); },
     1,
     {"no network interface", "ip address"}},
    {"loopback between hosts",
     [](auto& ranks) {
       ranks[3].interfaces = {{"lo", "127.0.0.1"}};
     },
     3,
     {"chooses interface lo (127.0.0.1)", "other hosts cannot reach",
      "no other interface that is up"}},
    {"loopback between hosts by request",
     [](auto& ranks) { ranks[3].variables["NCCL_SOCKET_IFNAME"] = "lo"; },
     3,
     {"chooses interface lo (127.0.0.1)", "set NCCL_SOCKET_IFNAME to one of: eth0"}},
    {"variable",
     [](auto& ranks) { ranks[2].variables["NCCL_PROTO"] = "LL"; },
     2,
     {"has NCCL_PROTO=LL, but others have NCCL_PROTO unset", "-x NCCL_PROTO"}},
    {"small /dev/shm",
     [](auto& ranks) {
       ranks[0].limits.shared_memory_free = ranks[1].limits.shared_memory_free = 20 << 20;
     },
     0,
     {"/dev/shm has 20 MiB free, 2 ranks need 32 MiB", "--shm-size"}},
    {"locked memory",
     [](auto& ranks) {
       ranks[2].has_infiniband = true;
       ranks[2].limits.locked_memory = 64 << 10;
     },
     2,
     {"may lock only 64 KiB", "ulimit -l unlimited"}},
    {"open files",
     [](auto& ranks) { ranks[3].limits.open_files = 64; },
     3,
     {"may open only 64 files", "4 ranks need about 72", "ulimit -n"}},
    {"RemoveIPC",
     [](auto& ranks) {
       for (RankFacts& rank : ranks) rank.user = "ann";
       ranks[3].limits.may_have_shared_memory_removed = true;
     },
     3,
     {"rank 3 (node2, pid 103): does not run in a login session of user ann", "enable-linger ann"},
     true},
    {"another driver",
     [](auto& ranks) { ranks[2].driver_version = 12040; },
     2,
     {"rank 2 (node2, pid 102): has a driver for CUDA 12.4, but others have one for 13.0"},
     true},
    {"stack",
     [](auto& ranks) { ranks[0].limits.stack = ~0ULL; },
     0,
     {"stack limit is unlimited", "ulimit -s"},
     true},
};

TEST(PreflightTest, NamesRankHostCauseAndFix) {
  for (const PreflightCase& one : kCases) {
    SCOPED_TRACE(one.name);
    std::vector<RankFacts> ranks = four();
    one.break_it(ranks);
    const std::vector<Finding> findings = compare_ranks(ranks);
    ASSERT_FALSE(findings.empty());
    EXPECT_EQ(findings[0].rank, one.rank);
    EXPECT_EQ(findings[0].kind, one.is_warning ? Finding::Kind::kWarning : Finding::Kind::kError);
    const std::string all = findings[0].text + "; " + findings[0].fix;
    EXPECT_NE(all.find(ranks[static_cast<std::size_t>(one.rank)].host), std::string::npos) << all;
    for (const std::string& part : one.says) {
      EXPECT_NE(all.find(part), std::string::npos) << part << " is not in: " << all;
    }
  }
}

TEST(PreflightTest, WarnsOfAVersionThatHangsOnUnevenHosts) {
  std::vector<RankFacts> ranks = four();
  for (RankFacts& rank : ranks) rank.nccl_version = 23102;
  EXPECT_TRUE(compare_ranks(ranks).empty());
  ranks.pop_back();
  const std::vector<Finding> findings = compare_ranks(ranks);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kWarning);
  EXPECT_EQ(findings[0].rank, 2);
  EXPECT_NE(findings[0].text.find("(1 here, 2 on node1)"), std::string::npos) << findings[0].text;
  for (RankFacts& rank : ranks) rank.variables["NCCL_NVLS_ENABLE"] = "0";
  EXPECT_TRUE(compare_ranks(ranks).empty());
}

TEST(PreflightTest, AllowsDifferencesThatDoNotMatter) {
  std::vector<RankFacts> ranks = four();
  ranks[0].variables = {
      {"NCCL_DEBUG", "INFO"}, {"NCCL_SOCKET_IFNAME", "eth"}, {"NCCL_HOSTID", "7"}};
  ranks[1].has_infiniband = true;
  ranks[1].limits.locked_memory = ~0ULL;
  EXPECT_TRUE(compare_ranks(ranks).empty());
}

TEST(PreflightTest, DoesNotReportAllowedSharedDevices) {
  std::vector<RankFacts> ranks = four();
  ranks[1].uuid = ranks[0].uuid;
  ranks[0].variables["NCCL_HOSTID"] = "a";
  ranks[1].variables["NCCL_HOSTID"] = "b";
  EXPECT_TRUE(compare_ranks(ranks).empty());
  ranks = four();
  ranks[1].uuid = ranks[0].uuid;
  for (RankFacts& rank : ranks) {
    rank.nccl_version = 23007;
    rank.variables["NCCL_MULTI_RANK_GPU_ENABLE"] = "1";
  }
  EXPECT_TRUE(compare_ranks(ranks).empty());
}

TEST(PreflightTest, ReportsDevicesSharedOnPurpose) {
  std::vector<RankFacts> ranks = four();
  ranks[1].uuid = ranks[0].uuid;
  for (RankFacts& rank : ranks) rank.shares_devices = true;
  const std::vector<Finding> findings = compare_ranks(ranks);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kSharedDevice);
}

TEST(PreflightTest, LimitsTheNumberOfFindings) {
  std::vector<RankFacts> ranks;
  for (int rank = 0; rank < 100; ++rank) {
    ranks.push_back(healthy(rank));
    ranks.back().error = "no driver";
  }
  EXPECT_EQ(compare_ranks(ranks).size(), kFindingsMax);
}

TEST(PreflightTest, FactsSurviveARoundTrip) {
  RankFacts facts = healthy(3);
  facts.error = "two\nlines and a \\";
  facts.error_fix = "fix";
  facts.variables = {{"NCCL_X", "a=b\nc"}, {"NCCL_EMPTY", ""}};
  facts.has_infiniband = true;
  facts.shares_devices = true;
  facts.limits.locked_memory = 12345;
  facts.limits.stack = ~0ULL;
  const std::optional<RankFacts> read = decode(encode(facts));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(encode(*read), encode(facts));
  EXPECT_EQ(read->error, facts.error);
  EXPECT_EQ(read->variables, facts.variables);
  ASSERT_EQ(read->interfaces.size(), 3U);
  EXPECT_EQ(read->interfaces[1].address, "10.0.0.1");
  EXPECT_EQ(read->interfaces[1].prefix_bits, 16);
  EXPECT_EQ(read->limits.stack, ~0ULL);
  for (const char* const junk :
       {"", "x", "rank\n", "rank x\n", "host a\n", "rank 1\nshm -\n",
        "rank 1\ninterface eth0=10.0.0.1\n", "rank 1\ninterface eth0=10.0.0.1/x\n"}) {
    EXPECT_FALSE(decode(junk).has_value()) << junk;
  }
}

// ---- Files that tell whether logind empties /dev/shm -------------------------------------------

class RemoveIpcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/ivy-remove-ipc-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
    write("run/systemd/users/1001", "");
    write("proc/self/cgroup", "0::/system.slice/ivy-agent.service\n");
    write("etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  bool may_lose(std::uint32_t user = 1001) {
    return may_have_shared_memory_removed(root_, user, "ann");
  }

  std::filesystem::path root_;
};

TEST_F(RemoveIpcTest, AffectsServicesOfOrdinaryUsers) { EXPECT_TRUE(may_lose()); }

TEST_F(RemoveIpcTest, SparesSystemUsers) { EXPECT_FALSE(may_lose(998)); }

TEST_F(RemoveIpcTest, SparesUsersInASession) {
  write("proc/self/cgroup", "0::/user.slice/user-1001.slice/session-3.scope\n");
  EXPECT_FALSE(may_lose());
}

TEST_F(RemoveIpcTest, SparesLingeringUsers) {
  write("var/lib/systemd/linger/ann", "");
  EXPECT_FALSE(may_lose());
}

TEST_F(RemoveIpcTest, HonoursTheConfiguration) {
  write("etc/systemd/logind.conf.d/10-ipc.conf", "[Login]\nRemoveIPC=no\n");
  EXPECT_FALSE(may_lose());
}

TEST_F(RemoveIpcTest, NeedsLogind) {
  std::filesystem::remove_all(root_ / "run");
  EXPECT_FALSE(may_lose());
}

TEST(InterfaceTest, ChoosesAnInterfaceLikeNccl) {
  const std::vector<Interface> all = {
      {"lo", "a"}, {"docker0", "b"}, {"eth0", "c"}, {"eth1", "d"}, {"ib0", "e"}};
  const std::vector<Interface> odd = {{"lo", "a"}, {"docker0", "b"}};
  struct Row {
    std::string wanted;
    std::string chosen;
  };
  const Row rows[] = {{"", "ib0"},
                      {"eth", "eth0"},
                      {"eth1", "eth1"},
                      {"=eth", ""},
                      {"=eth1", "eth1"},
                      {"^lo", "docker0"},
                      {"^lo,docker", "eth0"},
                      {"^=eth0,lo,docker0", "eth1"},
                      {"ens,eth1", "eth1"},
                      {"nosuch", ""}};
  for (const Row& row : rows) {
    const std::optional<Interface> chosen = choose_interface(all, row.wanted);
    EXPECT_EQ(chosen ? chosen->name : "", row.chosen) << row.wanted;
  }
  EXPECT_EQ(choose_interface(odd, "")->name, "docker0");
  EXPECT_EQ(choose_interface({{"lo", "a"}}, "")->name, "lo");
  EXPECT_FALSE(choose_interface({}, "").has_value());
}

TEST(VersionTest, ReadsVersionsLikeNccl) {
  EXPECT_EQ(version_text(22809), "2.28.9");
  EXPECT_EQ(version_text(21400), "2.14.0");
  EXPECT_EQ(version_text(2708), "2.7.8");
  EXPECT_EQ(version_text(21005), "2.10.5");
}

TEST(RootTest, ChoosesARootForEveryRunOfRanks) {
  EXPECT_EQ(root_count(127, true, 0), 1);
  EXPECT_EQ(root_count(128, true, 0), 2);
  EXPECT_EQ(root_count(1024, true, 0), 8);
  EXPECT_EQ(root_count(1000, false, 0), 1);
  EXPECT_EQ(root_count(4, true, 2), 2);
  EXPECT_EQ(root_count(4, true, 9), 4);
  EXPECT_EQ(root_count(4, false, 2), 1);
  // 3 roots among 8 ranks: runs of 3, 3 and 2, as in NCCL's guide.
  EXPECT_EQ(rank_of_root(0, 3, 8), 0);
  EXPECT_EQ(rank_of_root(1, 3, 8), 3);
  EXPECT_EQ(rank_of_root(2, 3, 8), 6);
}

TEST(PlanTest, SupportsEveryTypeAndOperation) {
  using comm_status::Operation;
  struct Row {
    Dtype dtype;
    ReduceOp op;
    bool is_staged;
    Element element;
    Reduce reduce;
    std::size_t multiplicity;
  };
  const Row rows[] = {
      {Dtype::kF32, ReduceOp::kSum, false, Element::kF32, Reduce::kSum, 1},
      {Dtype::kBf16, ReduceOp::kAvg, false, Element::kBf16, Reduce::kAvg, 1},
      {Dtype::kC64, ReduceOp::kSum, false, Element::kF32, Reduce::kSum, 2},
      {Dtype::kC128, ReduceOp::kAvg, false, Element::kF64, Reduce::kAvg, 2},
      {Dtype::kBool, ReduceOp::kSum, false, Element::kU8, Reduce::kMax, 1},
      {Dtype::kBool, ReduceOp::kProduct, false, Element::kU8, Reduce::kMin, 1},
      {Dtype::kF64, ReduceOp::kPremulSum, false, Element::kF64, Reduce::kSum, 1},
      {Dtype::kBool, ReduceOp::kBxor, true, {}, {}, 1},
      {Dtype::kI32, ReduceOp::kBand, true, {}, {}, 1},
      {Dtype::kI32, ReduceOp::kAvg, true, {}, {}, 1},
      {Dtype::kI16, ReduceOp::kSum, true, {}, {}, 1},
      {Dtype::kF8E4m3, ReduceOp::kSum, true, {}, {}, 1},
      {Dtype::kC64, ReduceOp::kProduct, true, {}, {}, 1},
      {Dtype::kF16, ReduceOp::kPremulSum, true, {}, {}, 1},
  };
  for (const Row& row : rows) {
    const ReductionPlan plan = plan_reduction(Operation::kAllReduce, row.dtype, row.op);
    EXPECT_EQ(plan.is_staged, row.is_staged) << dtype_name(row.dtype) << reduce_op_name(row.op);
    if (row.is_staged) continue;
    EXPECT_EQ(plan.element, row.element);
    EXPECT_EQ(plan.reduce, row.reduce);
    EXPECT_EQ(plan.multiplicity, row.multiplicity);
  }
  EXPECT_TRUE(plan_reduction(Operation::kScan, Dtype::kF32, ReduceOp::kSum).is_staged);
}

// ---- Calls that may never return ----------------------------------------------------------------

// A call that waits until it is released, and records whether it was late.
struct Hanging {
  std::atomic<bool> may_go{false};
  std::atomic<bool> was_late{false};
};

class DeadRank final : public FailureSource {
 public:
  MaybeFailure find_failure() override {
    return make_failure(FailureKind::kRankDied, "rank 7 died");
  }
};

AbandonableCall call_of(const std::shared_ptr<Hanging>& hanging, std::chrono::milliseconds time) {
  AbandonableCall abandonable;
  abandonable.call = [hanging] {
    while (!hanging->may_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  abandonable.late = [hanging] { hanging->was_late = true; };
  abandonable.what = "the call";
  abandonable.deadline = std::chrono::steady_clock::now() + time;
  return abandonable;
}

TEST(AbandonableCallTest, LeavesTheProcessCleanIfTheCallReturns) {
  const auto hanging = std::make_shared<Hanging>();
  hanging->may_go = true;
  EXPECT_FALSE(call_abandonable(call_of(hanging, std::chrono::seconds(60))).has_value());
  EXPECT_FALSE(is_tainted());
  EXPECT_FALSE(hanging->was_late);
}

TEST(AbandonableCallTest, TaintsTheProcessUntilTheCallReturns) {
  const auto hanging = std::make_shared<Hanging>();
  const MaybeFailure late = call_abandonable(call_of(hanging, std::chrono::milliseconds(20)));
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->kind, FailureKind::kTimeout);
  EXPECT_EQ(taint(), "the call has not returned: exit this process");
  const auto other = std::make_shared<Hanging>();
  AbandonableCall troubled = call_of(other, std::chrono::seconds(60));
  DeadRank dead;
  troubled.source = &dead;
  const MaybeFailure died = call_abandonable(std::move(troubled));
  ASSERT_TRUE(died.has_value());
  EXPECT_STREQ(died->text, "rank 7 died");
  hanging->may_go = true;
  EXPECT_TRUE(ivy::test::eventually([&] { return hanging->was_late.load(); }));
  EXPECT_TRUE(is_tainted());
  other->may_go = true;
  EXPECT_TRUE(ivy::test::eventually([] { return !is_tainted(); }));
}

// ---- Reachability of interfaces, with real sockets on loopback ---------------------------------

using std::chrono::milliseconds;

TEST(SubnetsTest, AreCommonIfEveryHostHasAnAddress) {
  std::vector<RankFacts> ranks = {healthy(0), healthy(2), healthy(3)};
  ranks[0].interfaces = {{"lo", "127.0.0.1", 8},    {"docker0", "172.17.0.1", 16},
                         {"eth1", "10.99.2.1", 24}, {"eth0", "10.77.0.2", 22},
                         {"ib0", "fd00::12", 121},  {"old", "10.5.0.1", 0}};
  ranks[1].interfaces = {{"docker0", "172.17.0.1", 16},
                         {"ens1", "10.77.3.3", 22},
                         {"ib0", "fd00::7f", 121},
                         {"eth1", "10.99.3.1", 24},
                         {"old", "10.5.0.1", 0}};
  ranks[2].interfaces = {{"ib1", "fd00::1", 121}, {"eth0", "10.77.1.4", 22}};
  const std::vector<CommonSubnet> common = common_subnets(ranks);
  ASSERT_EQ(common.size(), 2U);
  EXPECT_EQ(common[0].subnet, "10.77.0.0/22");
  EXPECT_EQ(common[0].names, (std::vector<std::string>{"eth0", "ens1"}));
  EXPECT_EQ(common[1].subnet, "fd00::/121");
  EXPECT_EQ(common[1].names, (std::vector<std::string>{"ib0", "ib1"}));
  EXPECT_EQ(
      unreachable_finding(ranks, ranks[1], "cannot reach 10.99.2.1 (eth1)").fix,
      "set NCCL_SOCKET_IFNAME=eth0,ens1 (10.77.0.0/22) or =ib0,ib1 (fd00::/121), in which all "
      "hosts have an address, or open the firewall between them");

  // A host without an address in any of them.
  ranks[2].interfaces = {{"docker0", "172.17.0.1", 16}, {"eth0", "10.78.0.4", 22}};
  EXPECT_TRUE(common_subnets(ranks).empty());
  EXPECT_EQ(unreachable_finding(ranks, ranks[2], "cannot reach 10.99.2.1 (eth1)").fix,
            "the hosts have no network in common: add routes between their networks, or set "
            "NCCL_SOCKET_IFNAME to an interface that the others can reach (eth0)");
  EXPECT_TRUE(common_subnets({}).empty());
}

TEST(InterfaceProbeTest, ReachesOnlyListeningAddresses) {
  ProbeListener listener;
  const std::uint16_t port = listener.listen_at("127.9.8.7");
  ASSERT_NE(port, 0);
  EXPECT_TRUE(try_address("127.9.8.7", port, milliseconds(1'000)).ok());
  // The same port at another address, as with a docker0 on each of two hosts.
  const Result<void> other = try_address("127.9.8.8", port, milliseconds(1'000));
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("refused"), std::string::npos);
  EXPECT_FALSE(try_address("no address", port, milliseconds(1'000)).ok());
  ProbeListener nowhere;
  EXPECT_EQ(nowhere.listen_at("192.0.2.1"), 0);
}

TEST(InterfaceProbeTest, WaitsForSilentPeersUntilOneCommonDeadline) {
  // A listener with a full queue does not answer further connections, like a firewall.
  const int full = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(full, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(full, 0), 0);
  ASSERT_EQ(getsockname(full, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::vector<int> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    static_cast<void>(connect(waiting.back(), reinterpret_cast<sockaddr*>(&address), size));
  }
  std::vector<RankFacts> peers = {healthy(2), healthy(3)};
  for (RankFacts& peer : peers) {
    peer.interfaces = {{"eth1", "127.0.0.1"}};
    peer.probe_port = ntohs(address.sin_port);
  }
  const auto began = std::chrono::steady_clock::now();
  const std::string found = try_peers(healthy(0), peers, milliseconds(300));
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(550));
  EXPECT_EQ(
      found,
      "cannot reach 127.0.0.1 (eth1), on which NCCL of rank 2 (node2, pid 102) will listen: no "
      "answer within 300 ms");
  // Peers in the same network are not probed.
  EXPECT_EQ(try_peers(healthy(3), peers, milliseconds(300)), "");
  for (const int fd : waiting) close(fd);
  close(full);
}

TEST(InterfaceProbeTest, TreatsASeparateNamespaceAsAnotherNetwork) {
  std::vector<RankFacts> ranks = {healthy(0), healthy(1)};
  EXPECT_FALSE(spans_networks(ranks));
  ranks[1].network = "net:[2]";
  ranks[1].probe_port = 77;
  EXPECT_TRUE(spans_networks(ranks));
  const std::optional<RankFacts> read = decode(encode(ranks[1]));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->network, "net:[2]");
  EXPECT_EQ(read->probe_port, 77);
  // There, lo does not reach the other rank, although both are on one machine.
  ranks[1].variables["NCCL_SOCKET_IFNAME"] = "lo";
  ASSERT_EQ(compare_ranks(ranks).size(), 1u);
  EXPECT_NE(compare_ranks(ranks)[0].text.find("interface lo"), std::string::npos);
}

}  // namespace
}  // namespace ivy::comm::nccl
