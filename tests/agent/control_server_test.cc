// SPDX-License-Identifier: Apache-2.0
// The supervisor's side of the control socket with real processes at the other end. Goal: when a
// process exits, the others are notified immediately and correctly, and an invalid peer affects no
// other connection.
#include "agent/node/supervisor/control_server.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <set>

#include "tests/agent/node_fixture.h"
#include "tests/support/control_client.h"
#include "tests/support/leak_guard.h"
#include "tests/support/resource_limit.h"

namespace ivy::test {
namespace {

using comm_status::RankState;
using comm_status::RankStatus;
using std::chrono::milliseconds;
using std::chrono::seconds;

RankLayout layout(std::uint32_t generation = 0) {
  return {generation, 6, {{"here", 4}, {"there", 2}}, {0, 1, 2, 3}};
}

// A process on the control socket, and its output.
struct Child {
  SpawnedProcess process;
  std::unique_ptr<Pipe> output;
  std::string line() const { return read_text(output->reader(), ReadUntil::kLine); }
};

// Drops the events of a server.
class NoEvents final : public EventSink {
 public:
  void send(const Event&) override {}
};

class ControlServerTest : public testing::Test, private EventSink {
 protected:
  ControlServerTest() {
    std::string pattern = "/tmp/ivy-control-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/control.sock";
    EventSink& events = *this;
    server_ = std::make_unique<ControlServer>(loop_, events);
    EXPECT_TRUE(server_->listen(path_).ok());
    server_->begin(layout());
  }
  ~ControlServerTest() override {
    for (auto& [rank, child] : children_) {
      kill(child.process.pid, SIGKILL);
      wait_exit(child.process);
    }
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void send(const Event& event) override {
    if (event.has_rank_updates()) reported_.push_back(event.rank_updates());
    if (event.has_operations()) operations_ = event.operations();
  }

  bool pump(const std::function<bool()>& condition, milliseconds deadline = seconds(10)) {
    return eventually(
        [&] {
          loop_.restart();
          loop_.poll();
          return condition();
        },
        deadline);
  }
  // Runs a client call on another thread while the server's loop runs.
  template <class Work>
  auto beside(Work work) {
    auto result = std::async(std::launch::async, std::move(work));
    EXPECT_TRUE(pump([&] { return result.wait_for(seconds(0)) == std::future_status::ready; },
                     seconds(30)));
    return result.get();
  }

  Environment environment(std::uint32_t rank, std::uint32_t generation = 0) const {
    return {{"IVY_RANK", std::to_string(rank)},
            {"IVY_CONTROL", path_},
            {"IVY_GENERATION", std::to_string(generation)},
            {"IVY_TEST_SLOW", "3"}};
  }
  // Selects the event of a worker that reaches the server first.
  enum class Order : std::uint8_t { kStartedFirst, kAttachedFirst };
  // Starts the rank's own process and waits until it is attached.
  Child& start_worker(std::uint32_t rank, std::vector<std::string> steps,
                      Order order = Order::kStartedFirst) {
    steps.insert(steps.begin(), "attach");
    return start_process(rank, request_for("control_worker", std::move(steps)), order);
  }
  Child& start_process(std::uint32_t rank, SpawnRequest request,
                       Order order = Order::kStartedFirst) {
    request.environment = environment(rank);
    Child& child = children_[rank];
    child.output = std::make_unique<Pipe>();
    request.stdout_fd = child.output->writer();
    const SpawnResult spawned = spawn(request);
    EXPECT_TRUE(spawned.ok());
    child.process = spawned.process;
    child.output->close_end(1);
    if (order == Order::kStartedFirst) server_->worker_started(rank, child.process.pid);
    EXPECT_TRUE(pump([&] { return server_->is_informed(rank); }));
    if (order == Order::kAttachedFirst) server_->worker_started(rank, child.process.pid);
    return child;
  }
  // Reports the exit of a reaped worker, as the supervisor does.
  ExitStatus reap(std::uint32_t rank) {
    const Child& child = children_[rank];
    const ExitStatus status = wait_exit(child.process);
    server_->worker_reaped(rank, child.process.pid, status, false);
    children_.erase(rank);
    return status;
  }
  RankStatus status(std::uint32_t rank) { return server_->status().status(rank); }
  const RankUpdate* find_update(std::uint32_t rank, RankState state) const {
    for (const RankUpdates& updates : reported_)
      for (const RankUpdate& one : updates.ranks())
        if (one.rank() == rank && one.state() == static_cast<std::uint32_t>(state)) return &one;
    return nullptr;
  }
  // Returns the communicators of the reports to the launcher.
  std::set<std::string> reported() const {
    std::set<std::string> names;
    for (const RankUpdates& updates : reported_)
      for (const RankReport& report : updates.reports())
        EXPECT_TRUE(names.insert(report.communicator()).second) << report.communicator();
    return names;
  }
  ControlClient connect() {
    Result<ControlClient> client = ControlClient::connect(path_);
    EXPECT_TRUE(client.ok()) << client.error().message;
    return std::move(*client);
  }
  ControlClient attached(std::uint32_t rank, std::uint32_t generation = 0) {
    ControlClient client = connect();
    const auto attached = beside([&] { return client.attach(rank, generation); });
    EXPECT_TRUE(attached.ok()) << attached.error().message;
    return client;
  }

  LeakGuard leak_guard_;
  std::string directory_;
  std::string path_;
  std::vector<RankUpdates> reported_;
  Operations operations_;
  std::map<std::uint32_t, Child> children_;
  boost::asio::io_context loop_{1};
  std::unique_ptr<ControlServer> server_;
};

TEST_F(ControlServerTest, ReportsAKilledRankToOtherRanksAndTheLauncher) {
  Child& survivor = start_worker(0, {"wait-dead:1"});
  EXPECT_TRUE(survivor.line().starts_with("attached slot=0"));
  ASSERT_EQ(reported_.size(), 1u);
  EXPECT_TRUE(reported_[0].listening());
  start_worker(2, {"sleep:60000"});
  const pid_t pid = children_[2].process.pid;
  kill(pid, SIGKILL);
  reap(2);
  const std::string line = survivor.line();
  EXPECT_TRUE(line.starts_with("dead rank=2 state=signalled code=9 pid=" + std::to_string(pid) +
                               " host=here"))
      << line;
  const RankUpdate* const updates = find_update(2, RankState::kSignalled);
  ASSERT_NE(updates, nullptr);
  EXPECT_EQ(updates->code(), 9);
  EXPECT_EQ(updates->pid(), pid);
  EXPECT_FALSE(server_->is_informed(2));
  EXPECT_TRUE(server_->is_informed(0));
}

TEST_F(ControlServerTest, ReportsTheSignalOfAWorkerThatAttachedBeforeItsStartWasReported) {
  Child& survivor = start_worker(0, {"wait-dead:1"});
  survivor.line();
  start_worker(2, {"sleep:60000"}, Order::kAttachedFirst);
  kill(children_[2].process.pid, SIGKILL);
  // The process remains a zombie for longer than the server waits for the exit of a process that is
  // not its child.
  pump([] { return false; }, milliseconds(100));
  EXPECT_EQ(status(2).state, RankState::kAlive);
  reap(2);
  const std::string line = survivor.line();
  EXPECT_TRUE(line.starts_with("dead rank=2 state=signalled code=9 pid=")) << line;
  EXPECT_EQ(find_update(2, RankState::kDied), nullptr);
}

TEST_F(ControlServerTest, DetectsTheExitOfAProcessBelowAShell) {
  Child& survivor = start_worker(0, {"wait-dead:1"});
  survivor.line();
  SpawnRequest request;
  request.executable = "/bin/sh";
  request.arguments = {"sh", "-c", child_program("control_worker") + " attach sleep:60000; exit 0"};
  request.working_directory = "/";
  Child& shell = start_process(1, std::move(request));
  const std::string line = shell.line();
  const pid_t pid = std::atoi(line.substr(line.find("pid=") + 4).c_str());
  ASSERT_GT(pid, 1);
  ASSERT_NE(pid, shell.process.pid);
  // The launcher learns that this rank's exit is reported separately from its worker's.
  ASSERT_NE(find_update(1, RankState::kAlive), nullptr);
  kill(pid, SIGKILL);
  ASSERT_TRUE(pump([&] { return status(1).state != RankState::kAlive; }));
  EXPECT_TRUE(survivor.line().starts_with("dead rank=1 state="));
  // The shell exits with 0, but the rank was killed.
  EXPECT_EQ(reap(1).code, 0);
  const bool kernel_knows = status(1).state == RankState::kSignalled;
  EXPECT_TRUE(kernel_knows || status(1).state == RankState::kDied);
  if (kernel_knows) {
    EXPECT_EQ(status(1).code, 9);
  }
  EXPECT_EQ(status(1).pid, pid);
}

TEST_F(ControlServerTest, TakesTheSignalFromTheExitCodeOfAShell) {
  server_->begin(layout());
  ControlClient client = attached(1);
  server_->worker_started(1, 1234);  // Not the process that is attached.
  // As on a kernel that does not report how another parent's child exited.
  RankStatus died;
  died.state = RankState::kDied;
  EXPECT_TRUE(server_->status().set(1, died));
  server_->worker_reaped(1, 1234, ExitStatus{.code = 139}, false);
  EXPECT_EQ(status(1).state, RankState::kSignalled);
  EXPECT_EQ(status(1).code, 11);
}

TEST_F(ControlServerTest, DoesNotReportAnExitAfterLeave) {
  Child& survivor = start_worker(0, {"wait-left:1", "sleep:60000"});
  survivor.line();
  Child& leaver = start_worker(1, {"leave", "exit:3"});
  leaver.line();
  ASSERT_TRUE(pump([&] { return status(1).state == RankState::kLeft; }));
  EXPECT_EQ(leaver.line(), "left\n");
  EXPECT_EQ(reap(1).code, 3);
  EXPECT_EQ(status(1).state, RankState::kLeft);
  EXPECT_EQ(survivor.line(), "has-left rank=1\n");
  EXPECT_NE(find_update(1, RankState::kLeft), nullptr);
  EXPECT_EQ(find_update(1, RankState::kExited), nullptr);
}

TEST_F(ControlServerTest, CountsARankThatLeftAMomentAgoAsInformed) {
  EXPECT_FALSE(server_->has_informed());
  ControlClient client = attached(1);
  EXPECT_TRUE(server_->is_informed(1));
  EXPECT_TRUE(beside([&] { return client.leave(); }).ok());
  EXPECT_TRUE(server_->has_informed());
  EXPECT_FALSE(server_->is_informed(0));
  EXPECT_TRUE(pump([&] { return !server_->has_informed(); }))
      << "a rank that left long ago does not count";
}

TEST_F(ControlServerTest, SendsANewLauncherTheRanksThatHaveLeft) {
  RankUpdates nothing;
  EXPECT_FALSE(server_->add_all_known(nothing)) << "no rank has attached";
  start_worker(0, {"sleep:60000"});
  start_worker(1, {"leave", "sleep:60000"});
  ASSERT_TRUE(pump([&] { return status(1).state == RankState::kLeft; }));
  RankUpdates updates;
  ASSERT_TRUE(server_->add_all_known(updates));
  EXPECT_TRUE(updates.listening());
  // Rank 0 is a child of this process and alive: its exit is reported by Exited.
  ASSERT_EQ(updates.ranks_size(), 1);
  EXPECT_EQ(updates.ranks(0).rank(), 1u);
  EXPECT_EQ(updates.ranks(0).state(), static_cast<std::uint32_t>(RankState::kLeft));
}

TEST_F(ControlServerTest, ReportsAnExitWithoutLeaveEvenWithCodeZero) {
  Child& survivor = start_worker(0, {"wait-dead:1"});
  survivor.line();
  start_worker(3, {"exit:0"});
  reap(3);
  EXPECT_TRUE(survivor.line().starts_with("dead rank=3 state=exited code=0"));
}

TEST_F(ControlServerTest, RecordsTheExitOfAWorkerThatNeverAttached) {
  server_->worker_reaped(2, 77, ExitStatus{.code = 1}, false);
  EXPECT_TRUE(server_->status().set(3, ended_status({}, 0)));
  server_->status().publish();
  // The launcher learns of these exits from Exited and StartFailed.
  EXPECT_TRUE(reported_.empty());
  ControlClient client = attached(0);
  EXPECT_EQ(client.page().rank(2).state, RankState::kExited);
  EXPECT_EQ(client.page().rank(2).pid, 77);
  EXPECT_EQ(client.page().rank(3).state, RankState::kDied);
  EXPECT_EQ(client.page().deaths(), 2u);
  EXPECT_EQ(client.page().host_name(client.page().rank(5).host), "there");
}

TEST_F(ControlServerTest, LetsARestartedRankAttachAndKeepsItsLastExit) {
  ControlClient client = attached(0);
  start_worker(3, {"exit:7"});
  reap(3);
  server_->worker_starts_again(3, 1);
  comm_status::RankStatus again = client.page().rank(3);
  EXPECT_EQ(again.state, RankState::kAlive);
  EXPECT_EQ(again.rejoins, 1u);
  EXPECT_EQ(again.last_end, RankState::kExited);
  EXPECT_EQ(again.code, 7);
  start_worker(3, {"exit:8"});
  reap(3);
  again = client.page().rank(3);
  EXPECT_EQ(again.state, RankState::kExited);
  EXPECT_EQ(again.rejoins, 1u);
  EXPECT_EQ(again.code, 8);
}

TEST_F(ControlServerTest, KnowsTheExitStatusOfAReapedOrphan) {
  ControlClient client = attached(1);
  server_->child_reaped(getpid(), ExitStatus{.signal = SIGSEGV});
  EXPECT_EQ(status(1).state, RankState::kSignalled);
  EXPECT_EQ(status(1).code, SIGSEGV);
}

TEST_F(ControlServerTest, AppliesUpdatesOfRemoteRanksOnly) {
  ControlClient client = attached(0);
  RankUpdates updates;
  for (const std::uint32_t rank : {1u, 5u, 9999u}) {
    RankUpdate& find_update = *updates.add_ranks();
    find_update.set_rank(rank);
    find_update.set_state(static_cast<std::uint32_t>(RankState::kHostLost));
  }
  updates.add_ranks()->set_state(77);
  RankReport& report = *updates.add_reports();
  report.set_blamed(5);
  report.set_reporter(4);
  report.set_text("rank 5 did not come");
  const std::uint32_t before = client.page().event_count().load();
  server_->status().take(updates);
  EXPECT_EQ(client.page().rank(5).state, RankState::kHostLost);
  EXPECT_EQ(client.page().rank(1).state, RankState::kAlive);
  ASSERT_EQ(client.page().reports_after(0).size(), 1u);
  EXPECT_EQ(client.page().reports_after(0)[0].text, "rank 5 did not come");
  EXPECT_EQ(client.page().event_count().load(), before + 1);
  server_->status().take(updates);
  EXPECT_EQ(client.page().event_count().load(), before + 1) << "nothing has changed";
  updates.set_generation(1);
  updates.mutable_ranks(1)->set_rank(4);
  server_->status().take(updates);
  EXPECT_EQ(client.page().rank(4).state, RankState::kAlive) << "it is of another generation";
}

TEST_F(ControlServerTest, PassesAReportOnOnce) {
  ControlClient client = attached(0);
  ControlClient other = attached(1);
  control::Report report;
  report.kind = control::ReportKind::kMismatch;
  report.blamed = 1;
  report.sequence = 812;
  report.communicator = "world";
  report.text = "rank 1 called broadcast";
  client.report(report);
  client.report(report);
  ASSERT_TRUE(beside([&] {
    return other.wait_for_event([&] { return !other.page().reports_after(0).empty(); });
  }));
  EXPECT_EQ(other.page().reports_after(0)[0].reporter, 0u);
  EXPECT_EQ(other.page().reports_after(0)[0].text, report.text);
  // A communicator has one reason, even if another rank reports it next.
  report.sequence = 813;
  other.report(report);
  EXPECT_TRUE(beside([&] { return other.leave(); }).ok());
  EXPECT_EQ(reported(), std::set<std::string>{"world"});
}

TEST_F(ControlServerTest, PassesABurstOfReportsOn) {
  ControlClient client = attached(0);
  ControlClient other = attached(1);
  std::set<std::string> names;
  control::Report report;
  report.kind = control::ReportKind::kAborted;
  for (int i = 0; i < 3 * static_cast<int>(ReportQueue::kBurst); ++i) {
    report.communicator = "1.1:world/" + std::to_string(i);
    names.insert(report.communicator);
    client.report(report);
    loop_.restart();
    loop_.poll();
  }
  EXPECT_TRUE(pump([&] { return reported() == names; })) << reported().size();
  EXPECT_EQ(other.page().reports_after(0).size(), names.size());
}

TEST_F(ControlServerTest, ReadsTheLastPacketsOfAnExitedProcess) {
  ControlClient client = attached(0);
  control::Report report;
  report.kind = control::ReportKind::kAborted;
  for (int i = 0; i < 50; ++i) {
    report.communicator = std::to_string(i);
    client.report(report);
  }
  client.send_packet(control::encode(control::Request(control::Leave{})));
  server_->read_last_packets_of(0);
  EXPECT_EQ(status(0).state, RankState::kLeft);
}

comm_status::PageReport report_of(const std::string& communicator) {
  comm_status::PageReport report;
  report.communicator = communicator;
  return report;
}

TEST(ReportQueueTest, ReleasesABurstAndThenAFixedRate) {
  constexpr std::uint64_t kStart = 1'000'000'000'000;
  ReportQueue queue;
  EXPECT_TRUE(queue.take_due(kStart).empty());
  for (int i = 0; i < 3000; ++i) queue.push(report_of(std::to_string(i)));
  for (int i = 0; i < 3000; ++i) queue.push(report_of("0"));
  EXPECT_EQ(queue.take_due(kStart).size(), ReportQueue::kBurst);
  EXPECT_TRUE(queue.take_due(kStart).empty());
  // Polled more often than reports are released.
  std::size_t find_update = 0;
  for (std::uint64_t at = 0; at <= 10 * ReportQueue::kNanosPerReport; at += 300'000) {
    for (const auto& report : queue.take_due(kStart + at)) {
      EXPECT_EQ(report.communicator, std::to_string(ReportQueue::kBurst + find_update));
      ++find_update;
    }
  }
  EXPECT_GE(find_update, 9u);
  EXPECT_LE(find_update, 10u);
  // A long pause does not release more than one burst.
  EXPECT_EQ(queue.take_due(kStart + 3'600'000'000'000).size(), ReportQueue::kBurst);
  std::uint64_t at = kStart + 3'600'000'000'000;
  while (!queue.is_empty()) find_update += queue.take_due(at += 1'000'000'000).size();
  EXPECT_EQ(find_update + 2 * ReportQueue::kBurst, ReportQueue::kWaitingMax);
}

TEST_F(ControlServerTest, GivesAllMembersTheSameSegmentAndForgetsItsName) {
  ControlClient first = attached(0);
  ControlClient second = attached(1);
  const control::Segment segment{"world", 40u << 20, 2, true};
  const auto inode = [&](ControlClient& client) {
    const Result<int> fd = beside([&] { return client.segment(segment); });
    EXPECT_TRUE(fd.ok()) << fd.error().message;
    struct stat info {};
    if (!fd.ok() || fstat(*fd, &info) != 0) return ino_t{0};
    EXPECT_EQ(info.st_size, off_t{40} << 20);
    EXPECT_GE(info.st_blocks, (40 << 20) / 512) << "every page is taken";
    EXPECT_NE(ftruncate(*fd, 4096), 0) << "sealed";
    close(*fd);
    return info.st_ino;
  };
  const ino_t one = inode(first);
  EXPECT_EQ(inode(first), one);
  EXPECT_EQ(inode(second), one);
  EXPECT_NE(inode(first), one) << "a later communicator with the same name";
}

TEST_F(ControlServerTest, RejectsAnImpossibleSegmentWithTheReason) {
  ControlClient client = attached(0);
  const auto rejection = [&](const control::Segment& segment) {
    const Result<int> fd = beside([&] { return client.segment(segment); });
    EXPECT_FALSE(fd.ok());
    return fd.ok() ? std::string() : fd.error().message;
  };
  EXPECT_NE(rejection({"w", 4096, 5, true}).find("this host has 4"), std::string::npos);
  const Result<int> fd = beside([&] { return client.segment({"w", 4096, 2, true}); });
  ASSERT_TRUE(fd.ok());
  close(*fd);
  ControlClient other = attached(1);
  const Result<int> contradiction = beside([&] { return other.segment({"w", 8192, 2, true}); });
  ASSERT_FALSE(contradiction.ok());
  EXPECT_NE(contradiction.error().message.find("by another rank with 4096"), std::string::npos);
}

TEST_F(ControlServerTest, LetsOnlyOneProcessAttachAsARank) {
  start_worker(0, {"sleep:60000"});
  ControlClient client = connect();
  const auto rejection = [&](std::uint32_t rank, std::uint32_t generation) {
    ControlClient stranger = connect();
    const auto attached = beside([&] { return stranger.attach(rank, generation); });
    EXPECT_FALSE(attached.ok());
    EXPECT_TRUE(beside([&] { return stranger.wait_for_end(); }));
    return attached.ok() ? Error{} : attached.error();
  };
  EXPECT_EQ(rejection(0, 0).code, Code::kAlreadyExists);
  EXPECT_NE(rejection(5, 0).message.find("does not run on this host"), std::string::npos);
  EXPECT_NE(rejection(1, 3).message.find("generation 3"), std::string::npos);
  server_->worker_reaped(1, 5, ExitStatus{.code = 1}, false);
  EXPECT_NE(rejection(1, 0).message.find("an earlier process of rank 1"), std::string::npos);
}

TEST_F(ControlServerTest, LetsTheSameProcessAttachAgainAndAnotherAfterLeave) {
  ControlClient first = attached(1);
  ControlClient again = attached(1);
  EXPECT_TRUE(beside([&] { return first.wait_for_end(); }));
  EXPECT_TRUE(beside([&] { return again.leave(); }).ok());
  EXPECT_EQ(status(1).state, RankState::kLeft);
  start_worker(1, {"sleep:60000"});
  EXPECT_TRUE(pump([&] { return status(1).state == RankState::kAlive; }));
  EXPECT_EQ(status(1).pid, children_[1].process.pid);
}

// A supervisor in a container may have workers outside it: it sees neither their pids nor their
// exits.
TEST_F(ControlServerTest, AttachesAProcessOfAnInvisibleNamespace) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may make a pid namespace";
  path_ = directory_ + "/unseen.sock";
  Pipe ready;
  const pid_t outer = fork();
  if (outer == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(1);
    const pid_t inner = fork();
    if (inner == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      boost::asio::io_context loop;
      NoEvents no_events;
      ControlServer server(loop, no_events);
      if (!server.listen(path_).ok()) _exit(1);
      server.begin(layout());
      if (write(ready.writer(), "up\n", 3) != 3) _exit(1);
      loop.run_for(seconds(30));
      _exit(0);
    }
    waitpid(inner, nullptr, 0);
    _exit(0);
  }
  EXPECT_EQ(read_text(ready.reader(), ReadUntil::kLine), "up\n");
  {
    ControlClient first = connect();
    EXPECT_TRUE(first.attach(0, 0).ok());
    const auto second = connect().attach(0, 0);
    ASSERT_FALSE(second.ok()) << "it could be another process or the same one";
    EXPECT_NE(second.error().message.find("already attached"), std::string::npos)
        << second.error().message;
    EXPECT_TRUE(connect().attach(1, 0).ok());
  }
  kill(outer, SIGKILL);  // The inner one is killed with it.
  waitpid(outer, nullptr, 0);
}

TEST_F(ControlServerTest, DoesNotTakeEndOfFileForAnExit) {
  Child& worker = start_worker(1, {"sleep:60000"});
  { ControlClient client = attached(0); }
  kill(worker.process.pid, SIGSTOP);
  pump([] { return false; }, milliseconds(50));
  EXPECT_EQ(status(0).state, RankState::kAlive);
  EXPECT_EQ(status(1).state, RankState::kAlive) << "a stopped process is not dead";
}

TEST_F(ControlServerTest, ClosesOnlyTheConnectionsOfInvalidPeers) {
  ControlClient worker = attached(0);
  for (const std::string& packet :
       {std::string("x"), std::string(1024, '\xff'), std::string(5000, '\1'),
        control::encode(control::Request(control::Leave{}))}) {
    ControlClient stranger = connect();
    stranger.send_packet(packet);
    EXPECT_TRUE(beside([&] { return stranger.wait_for_end(); }));
  }
  std::vector<ControlClient> silent;
  for (std::size_t i = 0; i < ControlConnections::kMaxUnattached + 8; ++i) {
    silent.push_back(connect());
    loop_.restart();
    loop_.poll();
  }
  EXPECT_TRUE(beside([&] { return silent.front().wait_for_end(); }));
  EXPECT_FALSE(beside([&] { return silent.back().wait_for_end(milliseconds(20)); }));
  EXPECT_TRUE(beside([&] { return worker.leave(); }).ok());
}

// No descriptor is left: the server waits without spinning and continues when one is free.
TEST_F(ControlServerTest, AcceptsAgainOnceDescriptorsAreFree) {
  Result<ControlClient> first = ControlClient::connect(path_);
  ASSERT_TRUE(first.ok());
  std::size_t handlers = 0;
  {
    const test::ResourceLimit none(RLIMIT_NOFILE, 3);  // Fewer than are already open.
    const auto end = std::chrono::steady_clock::now() + milliseconds(300);
    while (std::chrono::steady_clock::now() < end) {
      loop_.restart();
      handlers += loop_.poll_one();
    }
  }
  EXPECT_LE(handlers, 20u) << "it spins";
  const Result<control::Attached> attached = beside([&] { return first->attach(0, 0); });
  EXPECT_TRUE(attached.ok());
}

TEST_F(ControlServerTest, DisconnectsAWorkerThatNeverReadsItsAnswers) {
  ControlClient client = attached(0);
  const control::Segment segment{"w", 4096, 2, true};
  const std::string packet = control::encode(control::Request(segment));
  const auto flood = [&] {
    for (int i = 0; i < 100'000; ++i)
      if (!client.send_packet(packet)) return true;
    return false;
  };
  EXPECT_TRUE(beside(flood));
  ControlClient other = attached(1);
  EXPECT_TRUE(beside([&] { return other.leave(); }).ok());
}

TEST_F(ControlServerTest, CreatesANewPageForEachGeneration) {
  ControlClient old = attached(0);
  const Result<int> fd = beside([&] { return old.segment({"w", 4096, 2, true}); });
  ASSERT_TRUE(fd.ok());
  struct stat before {};
  fstat(*fd, &before);
  close(*fd);
  server_->worker_reaped(2, 5, ExitStatus{.signal = 9}, false);
  EXPECT_EQ(old.page().deaths(), 1u);
  server_->begin(layout(1));
  EXPECT_TRUE(beside([&] { return old.wait_for_end(); }));
  ControlClient again = attached(0, 1);
  EXPECT_EQ(again.page().shape().generation, 1u);
  EXPECT_EQ(again.page().deaths(), 0u);
  EXPECT_EQ(old.page().deaths(), 1u) << "the old page does not change";
  const Result<int> other = beside([&] { return again.segment({"w", 4096, 2, true}); });
  ASSERT_TRUE(other.ok());
  struct stat after {};
  fstat(*other, &after);
  close(*other);
  EXPECT_NE(after.st_ino, before.st_ino);
  EXPECT_EQ(std::count_if(reported_.begin(), reported_.end(),
                          [](const RankUpdates& n) { return n.listening(); }),
            2);
}

TEST_F(ControlServerTest, ReadsOperationsAfterTheWorkersExit) {
  Child& worker = start_worker(1, {"finish:world,811", "enter:world,812", "sleep:60000"});
  for (int i = 0; i < 3; ++i) worker.line();
  kill(worker.process.pid, SIGKILL);
  reap(1);
  server_->send_operations(5);
  const Operations& operations = operations_;
  EXPECT_EQ(operations.number(), 5u);
  ASSERT_EQ(operations.ranks_size(), 1);
  const RankOperations& rank = operations.ranks(0);
  EXPECT_EQ(rank.rank(), 1u);
  EXPECT_EQ(rank.state(), static_cast<std::uint32_t>(RankState::kSignalled));
  ASSERT_EQ(rank.running_size(), 1);
  EXPECT_EQ(rank.running(0).sequence(), 812u);
  EXPECT_EQ(rank.running(0).communicator(), "world");
  EXPECT_EQ(rank.running(0).count(), 1024u);
  EXPECT_EQ(rank.last().sequence(), 811u);
}

TEST_F(ControlServerTest, ReportsAStallOncePerOperation) {
  Child& worker = start_worker(1, {"enter:world,5", "sleep:60000"});
  for (int i = 0; i < 2; ++i) worker.line();
  JobStatus& status = server_->status();
  const std::uint64_t far_ns = ~std::uint64_t{0} / 2;
  EXPECT_EQ(status.find_stall(1, 1'000'000'000), std::nullopt);
  EXPECT_EQ(status.find_stall(far_ns, 1'000'000'000), 1u);
  EXPECT_EQ(status.find_stall(far_ns, 1'000'000'000), std::nullopt);
}

TEST_F(ControlServerTest, LeaksNothingOverAThousandWorkers) {
  const int before = LeakGuard::count_descriptors();
  for (int i = 0; i < 1000; ++i) {
    ControlClient client = attached(static_cast<std::uint32_t>(i % 4));
    if (i % 3 == 0) {
      const Result<int> fd = beside([&] { return client.segment({"s", 4096, 1, true}); });
      ASSERT_TRUE(fd.ok());
      close(*fd);
    }
    if (i % 2 == 0) {
      ASSERT_TRUE(beside([&] { return client.leave(); }).ok());
    }
  }
  server_->begin(layout(1));
  ASSERT_TRUE(pump([&] { return LeakGuard::count_descriptors() <= before; }))
      << LeakGuard::count_descriptors() << " descriptors, before " << before;
}

}  // namespace
}  // namespace ivy::test
