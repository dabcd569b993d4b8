// SPDX-License-Identifier: Apache-2.0
// The job socket on real sockets: accepted clients, the output for followers, and the files that
// remain.
#include "launcher/job/control/job_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <chrono>
#include <thread>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/job/control/ctl_wire.h"
#include "launcher/job/control/follow_queue.h"
#include "tests/support/eventually.h"
#include "tests/support/leak_guard.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// 32 digits that no other test and no job uses.
std::string test_job_id(char digit) {
  std::string id = std::to_string(getpid());
  id.resize(31, digit);
  return id + "e";
}

class JobSocketTest : public ::testing::Test, public CtlRequests {
 protected:
  ctl::JobDescription describe() override {
    ctl::JobDescription job;
    job.set_job_id(id_);
    job.set_state("running");
    job.set_signals_ranks(signals_ranks_);
    return job;
  }
  Result<void> signal(const ctl::SignalJob& signal) override {
    signalled_ = signal.signal();
    signalled_ranges_ = static_cast<std::uint32_t>(signal.ranks_size());
    if (signalled_ == 99) return Error{Code::kInvalidArgument, "no such signal", "another"};
    return {};
  }
  Result<void> stop(const ctl::StopJob& stop) override {
    stopped_with_ms_ = stop.grace_ms();
    socket_->message("stopping\n");
    return {};
  }
  Result<ctl::StoreDescription> describe_store() override {
    if (store_address_.empty()) return Error{Code::kFailedPrecondition, "no store", "get one"};
    ctl::StoreDescription store;
    store.set_address(store_address_);
    return store;
  }
  void describe_operations(Text) override {}
  void describe_stacks(const ctl::DescribeStacks&, Text) override {}
  void describe_ranks(const ctl::DescribeRanks&, Ranks done) override {
    ctl::RanksDescription ranks;
    for (int rank = 0; rank < 16'384; ++rank) {
      ctl::RankRow& row = *ranks.add_ranks();
      row.set_host(std::string(100, 'h'));
      row.set_pid(rank);
    }
    done(ranks);
  }

  void SetUp() override {
    Result<std::unique_ptr<JobSocket>> opened = JobSocket::open(loop_, id_, *this);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    socket_ = std::move(opened).value();
  }
  void TearDown() override {
    socket_.reset();
    loop_.restart();
    loop_.poll();
    EXPECT_NE(access(path().c_str(), F_OK), 0) << "its directory still exists";
  }
  std::string path() const { return "/tmp/ivyrun-" + std::to_string(geteuid()) + "/" + id_; }
  LauncherDirectory directory() const {
    LauncherDirectory directory;
    directory.path = path();
    directory.job_id = id_;
    return directory;
  }
  // Runs the loop until the other thread's call has returned.
  template <class Ask>
  void serve_while(Ask ask) {
    std::atomic<bool> done{false};
    std::thread thread([&] {
      ask();
      done = true;
    });
    EXPECT_TRUE(test::eventually([&] {
      loop_.restart();
      loop_.poll();
      return done.load();
    }));
    thread.join();
  }

  test::LeakGuard guard_;
  boost::asio::io_context loop_{1};
  const std::string id_ = test_job_id('a');
  std::unique_ptr<JobSocket> socket_;
  int signalled_ = 0;
  std::uint32_t signalled_ranges_ = 0;
  bool signals_ranks_ = true;  // False: like a launcher of an older version.
  std::string store_address_;
  std::uint32_t stopped_with_ms_ = 0;
};

TEST_F(JobSocketTest, DescribesAndSignals) {
  serve_while([&] {
    const Result<ctl::JobDescription> job = describe_job(directory());
    ASSERT_TRUE(job.ok()) << job.error().message;
    EXPECT_EQ(job->state(), "running");
    ctl::Request request;
    request.mutable_signal()->set_signal(10);
    Result<CtlConnection> asked = CtlConnection::send_request(directory(), request);
    ASSERT_TRUE(asked.ok());
    EXPECT_TRUE(asked->receive().ok());
    request.mutable_signal()->set_signal(99);
    Result<CtlConnection> again = CtlConnection::send_request(directory(), request);
    ASSERT_TRUE(again.ok());
    const Result<ctl::Reply> rejected = again->receive();
    ASSERT_FALSE(rejected.ok());
    EXPECT_EQ(rejected.error().message, "no such signal");
    EXPECT_EQ(rejected.error().fix, "another");
  });
  EXPECT_EQ(signalled_, 99);
}

// An older launcher would send the signal to all ranks.
TEST_F(JobSocketTest, DoesNotAskAnOlderLauncherToSignalSomeRanks) {
  CtlOptions options;
  options.job = id_;
  options.signal = 10;
  options.ranks.all = false;
  options.ranks.ranks = {0, 1, 7};
  signals_ranks_ = false;
  int code = 0;
  testing::internal::CaptureStderr();
  serve_while([&] { code = ctl_signal(options); });
  const std::string write_error = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, kCtlFailed);
  EXPECT_NE(write_error.find("this job was started by an older ivyrun"), std::string::npos)
      << write_error;
  EXPECT_EQ(signalled_, 0);

  signals_ranks_ = true;
  serve_while([&] { code = ctl_signal(options); });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(signalled_, 10);
  EXPECT_EQ(signalled_ranges_, 2u);

  signals_ranks_ = false;
  options.ranks = {};
  serve_while([&] { code = ctl_signal(options); });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(signalled_ranges_, 0u) << "all ranks";
}

TEST_F(JobSocketTest, ReportsTheAddressOfTheStore) {
  ctl::Request request;
  request.mutable_describe_store();
  serve_while([&] {
    Result<CtlConnection> asked = CtlConnection::send_request(directory(), request);
    ASSERT_TRUE(asked.ok());
    EXPECT_EQ(asked->receive().error().message, "no store");
  });
  store_address_ = "10.0.0.1:4123";
  serve_while([&] {
    Result<CtlConnection> asked = CtlConnection::send_request(directory(), request);
    ASSERT_TRUE(asked.ok());
    const Result<ctl::Reply> reply = asked->receive();
    ASSERT_TRUE(reply.ok()) << reply.error().message;
    EXPECT_EQ(reply->store().address(), "10.0.0.1:4123");
  });
}

TEST_F(JobSocketTest, MakesAPrivateLockedDirectoryThatIsFound) {
  struct stat status {};
  ASSERT_EQ(stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  const int fd = open(path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_NE(flock(fd, LOCK_EX | LOCK_NB), 0);
  close(fd);
  const Result<FoundJob> found = choose_job(id_);
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->is_alive);
  EXPECT_EQ(JobSocket::open(loop_, id_, *this).error().code, Code::kAlreadyExists);
}

TEST_F(JobSocketTest, AnswersAStopImmediatelyAndAgainAtTheEnd) {
  bool reported = false;
  serve_while([&] {
    ctl::Request request;
    request.mutable_stop()->set_has_grace(true);
    request.mutable_stop()->set_grace_ms(1234);
    Result<CtlConnection> asked = CtlConnection::send_request(directory(), request);
    ASSERT_TRUE(asked.ok());
    EXPECT_EQ(asked->receive()->message().text(), "stopping\n");
    EXPECT_TRUE(asked->receive()->has_done());
    boost::asio::post(loop_, [&] {
      ctl::JobEnd end;
      end.set_exit_code(143);
      socket_->end(end, [&] { reported = true; });
    });
    const Result<ctl::Reply> end = asked->receive();
    ASSERT_TRUE(end.ok()) << end.error().message;
    EXPECT_EQ(end->end().exit_code(), 143);
    EXPECT_FALSE(asked->receive().ok());
  });
  EXPECT_EQ(stopped_with_ms_, 1234u);
  EXPECT_TRUE(test::eventually([&] {
    loop_.restart();
    loop_.poll();
    return reported;
  }));
  EXPECT_NE(access(path().c_str(), F_OK), 0);
}

TEST_F(JobSocketTest, DoesNotBlockOnAFollowerThatDoesNotRead) {
  ctl::Request request;
  request.mutable_follow()->set_output(true);
  Result<CtlConnection> follower = CtlConnection::send_request(directory(), request);
  ASSERT_TRUE(follower.ok());
  serve_while([&] { EXPECT_TRUE(follower->receive()->has_description()); });
  const std::string line = std::string(1023, 'x') + "\n";
  constexpr int kLines = 20'000;
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < kLines; ++i) socket_->output(0, 1, line, false);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, test::scaled_time(std::chrono::seconds(5)));
  std::uint64_t lines = 0;
  serve_while([&] {
    while (lines < kLines) {
      const Result<ctl::Reply> reply = follower->receive(milliseconds(1000));
      // A gap is reported with the next line that is delivered.
      if (!reply.ok()) boost::asio::post(loop_, [&] { socket_->output(0, 1, "last\n", false); });
      if (!reply.ok()) continue;
      const std::string& bytes = reply->output().bytes();
      if (bytes == "last\n") continue;
      lines += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
      lines += reply->gap().lines();
    }
  });
  EXPECT_EQ(lines, static_cast<std::uint64_t>(kLines));
}

TEST_F(JobSocketTest, AnswersRequestsDespiteManyFollowers) {
  ctl::Request request;
  request.mutable_follow()->set_output(true);
  std::vector<CtlConnection> followers;
  const auto follow = [&]() -> Result<ctl::Reply> {
    Result<CtlConnection> follower = CtlConnection::send_request(directory(), request);
    if (!follower.ok()) return follower.error();
    Result<ctl::Reply> reply = Error{Code::kUnavailable, "no answer"};
    serve_while([&] { reply = follower->receive(); });
    followers.push_back(std::move(follower).value());
    return reply;
  };
  for (std::size_t i = 0; i < JobSocket::kMaxFollowers; ++i) ASSERT_TRUE(follow().ok()) << i;
  const Result<ctl::Reply> rejected = follow();
  ASSERT_FALSE(rejected.ok());
  EXPECT_NE(rejected.error().message.find("128 clients already follow"), std::string::npos);
  ctl::Request stop;
  stop.mutable_stop()->set_grace_ms(7);
  serve_while([&] {
    Result<CtlConnection> asked = CtlConnection::send_request(directory(), stop);
    ASSERT_TRUE(asked.ok());
    EXPECT_TRUE(asked->receive().ok());
  });
  EXPECT_EQ(stopped_with_ms_, 7u);
}

TEST_F(JobSocketTest, ReadsRowsOfManyRanksInOneReply) {
  ctl::Request request;
  request.mutable_describe_ranks();
  serve_while([&] {
    const Result<ctl::Reply> reply = request_reply(directory(), request);
    ASSERT_TRUE(reply.ok()) << reply.error().message;
    EXPECT_EQ(reply->ranks().ranks_size(), 16'384);
  });
}

TEST_F(JobSocketTest, KeepsUndeliveredMessagesForTheFirstFollower) {
  const auto follow = [this](bool unheard) {
    ctl::Request request;
    request.mutable_follow()->set_undelivered(unheard);
    Result<CtlConnection> follower = CtlConnection::send_request(directory(), request);
    EXPECT_TRUE(follower.ok());
    serve_while([&] { EXPECT_TRUE(follower->receive()->has_description()); });
    return std::move(follower).value();
  };
  const auto next_message = [this](CtlConnection& follower) {
    std::string text;
    serve_while([&] { text = follower.receive()->message().text(); });
    return text;
  };
  socket_->message("shown at the terminal\n");
  socket_->keep_undelivered();
  CtlConnection logs = follow(false);
  socket_->message("attempt 1 failed\n");
  EXPECT_EQ(next_message(logs), "attempt 1 failed\n");
  socket_->message("attempt 2 failed\n");
  CtlConnection first = follow(true);
  EXPECT_EQ(next_message(first), "attempt 1 failed\nattempt 2 failed\n");
  socket_->message("attempt 3 failed\n");
  EXPECT_EQ(next_message(first), "attempt 3 failed\n");
  CtlConnection second = follow(true);
  socket_->message("the end\n");
  EXPECT_EQ(next_message(second), "the end\n") << "delivered messages are not repeated";
}

TEST_F(JobSocketTest, ClosesOnlyTheConnectionsOfInvalidAndSilentPeers) {
  const auto connect_raw = [&](const std::string& bytes) {
    ctl::Request request;
    request.mutable_describe();
    Result<CtlConnection> connection = CtlConnection::send_request(directory(), request);
    const int fd = connection.ok() ? connection->release() : -1;
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    return fd;
  };
  std::vector<int> fds;
  for (int i = 0; i < 8; ++i) fds.push_back(connect_raw(std::string(100, '\xff')));
  serve_while([&] { EXPECT_TRUE(describe_job(directory()).ok()); });
  for (const int fd : fds) close(fd);
  loop_.restart();
  loop_.poll();
}

TEST_F(JobSocketTest, RejectsAnUnknownRequestWithAnExplanation) {
  serve_while([&] {
    Result<CtlConnection> asked = CtlConnection::send_request(directory(), ctl::Request{});
    ASSERT_TRUE(asked.ok());
    const Result<ctl::Reply> reply = asked->receive();
    ASSERT_FALSE(reply.ok());
    EXPECT_EQ(reply.error().code, Code::kFailedPrecondition);
    EXPECT_NE(reply.error().message.find("does not know this request"), std::string::npos);
  });
}

// The directory of a killed launcher: recognized by its free lock, removed by the next launcher.
TEST(LauncherDirectory, IsRemovedAfterALaunchersDeathUnlikeASupervisors) {
  const std::string parent = "/tmp/ivyrun-" + std::to_string(geteuid());
  const std::string dead = parent + "/" + test_job_id('b');
  const std::string supervisors = dead + "-0";
  const std::string fresh = parent + "/" + test_job_id('c');
  mkdir(parent.c_str(), 0700);
  const timespec long_ago[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  for (const std::string& path : {dead, supervisors, fresh})
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  for (const std::string& path : {dead, supervisors})
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
  EXPECT_FALSE(choose_job(test_job_id('b')).ok()) << "it neither runs nor has a record";
  remove_stale_launcher_directories();
  EXPECT_NE(access(dead.c_str(), F_OK), 0);
  EXPECT_EQ(access(supervisors.c_str(), F_OK), 0);
  EXPECT_EQ(access(fresh.c_str(), F_OK), 0) << "its launcher may be about to lock it";
  rmdir(supervisors.c_str());
  rmdir(fresh.c_str());
}

TEST(LauncherDirectory, IsLockedUntilItIsRemoved) {
  Result<LockedLauncherDirectory> made = make_launcher_directory(test_job_id('d'));
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_FALSE(make_launcher_directory(test_job_id('d')).ok());
  remove_launcher_directory(*made);
  EXPECT_NE(access(made->path.c_str(), F_OK), 0);
}

// After a clock is set forward, its hosts may still wait for a new launcher.
TEST(LauncherDirectory, IsRemovedADayAfterTheTimeOfItsRecord) {
  const std::string parent = "/tmp/ivyrun-" + std::to_string(geteuid());
  mkdir(parent.c_str(), 0700);
  const auto make = [&](char digit, std::time_t age) {
    const std::string path = parent + "/" + test_job_id(digit);
    EXPECT_EQ(mkdir(path.c_str(), 0700), 0);
    close(open((path + "/record").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    for (const std::string& each : {path + "/record", path}) {
      const timespec when{std::time(nullptr) - age, 0};
      const timespec times[2] = {when, when};
      EXPECT_EQ(utimensat(AT_FDCWD, each.c_str(), times, 0), 0);
    }
    return path;
  };
  const std::string over = make('e', 60 * 60);
  const std::string long_over = make('f', 25 * 60 * 60);
  remove_stale_launcher_directories();
  EXPECT_EQ(access(over.c_str(), F_OK), 0);
  EXPECT_NE(access(long_over.c_str(), F_OK), 0);
  EXPECT_FALSE(choose_job(test_job_id('e')).ok()) << "its hosts no longer wait for a launcher";
  unlink((over + "/record").c_str());
  rmdir(over.c_str());
}

}  // namespace
}  // namespace ivy
