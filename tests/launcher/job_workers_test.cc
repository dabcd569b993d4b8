// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/job_workers.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

namespace ivy {
namespace {

// Ranks 0 and 1 on host 3, rank 2 on host 5.
JobPlan plan() {
  JobPlan plan;
  plan.world_size = 3;
  plan.hosts.resize(2);
  plan.hosts[0].name = "a";
  plan.hosts[0].host_index = 3;
  plan.hosts[0].workers = {{0, 0}, {1, 1}};
  plan.hosts[1].name = "b";
  plan.hosts[1].host_index = 5;
  plan.hosts[1].workers = {{2, 0}};
  return plan;
}

TEST(JobWorkersTest, FindsARankOnlyOnItsOwnHost) {
  JobWorkers workers;
  workers.begin(plan());
  EXPECT_NE(workers.of(3, 1), nullptr);
  EXPECT_EQ(workers.of(5, 1), nullptr);
  EXPECT_EQ(workers.of(3, 7), nullptr);
  EXPECT_EQ(workers.hosts_by_rank(), (std::vector<std::size_t>{3, 3, 5}));
}

TEST(JobWorkersTest, CountsEachStartOnceAndTheExits) {
  JobWorkers workers;
  workers.begin(plan());
  for (const std::uint32_t rank : {0u, 0u, 1u}) workers.started(workers[rank], 100);
  EXPECT_FALSE(workers.all_started());
  workers.started(workers[2], 101);
  EXPECT_TRUE(workers.all_started());
  Exited exited;
  exited.set_code(3);
  workers.exited(workers[1], exited, {7, 1});
  EXPECT_EQ(workers.running(), 2u);
  EXPECT_TRUE(workers[1].has_failed());
  EXPECT_EQ(workers[1].end.at_ns, 7);
  EXPECT_EQ(workers.unfinished_on(3), (std::vector<std::uint32_t>{0}));
}

TEST(JobWorkersTest, AddsTwoStreamsIfARankStartsAgain) {
  JobWorkers workers;
  workers.begin(plan());
  for (const std::uint32_t rank : {0u, 1u, 2u}) workers.started(workers[rank], 100);
  Exited exited;
  exited.set_signal(9);
  workers.exited(workers[1], exited, {7, 1});
  workers[1].open_streams = 1;
  workers.starts_again(workers[1]);
  EXPECT_EQ(workers.running(), 3u);
  EXPECT_EQ(workers[1].open_streams, 3) << "output of its last process may still arrive";
  EXPECT_EQ(workers[1].end.pid, 0);
  EXPECT_EQ(workers[1].end.host, "a");
  EXPECT_FALSE(workers[1].has_failed());
  workers.started(workers[1], 101);
  EXPECT_TRUE(workers.all_started());
  workers.exited(workers[1], exited, {9, 1});
  workers.starts_again(workers[1]);
  EXPECT_EQ(workers[1].rejoins, 2);
  StartFailed failed;
  failed.set_error(ENOENT);
  workers.start_failed(workers[1], failed, {});
  EXPECT_EQ(workers[1].open_streams, 3) << "a process that never started sends none";
}

TEST(JobWorkersTest, GivesAProgramThatCannotBeStartedAnExitCodeOfIvyrunAndNoOutput) {
  const struct {
    const char* step;
    int error;
    int exit_code;
    StartStep failed_step;
  } rows[] = {
      {"exec", ENOENT, kExitNotFound, StartStep::kExec},
      {"exec", EACCES, kExitNotExecutable, StartStep::kExec},
      {"exec", ENOEXEC, kExitNotExecutable, StartStep::kExec},
      {"chdir", ENOENT, kExitNotExecutable, StartStep::kOther},
      {"stdin", ENOENT, kExitNotExecutable, StartStep::kStdin},
      {"bind", EINVAL, kExitNotExecutable, StartStep::kBind},
      {"clone", EAGAIN, kExitNotExecutable, StartStep::kOther},
  };
  for (const auto& row : rows) {
    JobWorkers workers;
    workers.begin(plan());
    StartFailed failed;
    failed.set_step(row.step);
    failed.set_error(row.error);
    failed.set_path("/x");
    workers.start_failed(workers[2], failed, {});
    const WorkerEnd& end = workers[2].end;
    EXPECT_EQ(end.status.code, row.exit_code) << end.exec_failure;
    EXPECT_EQ(end.failed_step, row.failed_step) << end.exec_failure;
    EXPECT_EQ(end.failed_errno, row.error);
    EXPECT_TRUE(end.exec_failure.ends_with(": /x")) << end.exec_failure;
    EXPECT_EQ(workers[2].open_streams, 0);
  }
}

TEST(JobWorkersTest, CountsACancelledStartAsStopped) {
  JobWorkers workers;
  workers.begin(plan());
  StartFailed failed;
  failed.set_step("stop");
  failed.set_error(ECANCELED);
  workers.start_failed(workers[2], failed, {});
  EXPECT_TRUE(workers[2].end.exec_failure.empty());
  EXPECT_TRUE(workers[2].end.after_stop);
  EXPECT_EQ(workers[2].end.status.signal, SIGTERM);
  EXPECT_EQ(workers[2].open_streams, 0);
}

TEST(JobWorkersTest, AwaitsNoOutputOfLostHostsAndOfWorkersThatNeverStarted) {
  JobWorkers workers;
  workers.begin(plan());
  const auto is_lost = [](std::size_t host) { return host == 5; };
  workers.started(workers[0], 100);
  workers.host_reported(3);
  EXPECT_FALSE(workers.has_all_output(is_lost));
  workers[0].open_streams = 0;
  EXPECT_TRUE(workers.has_all_output(is_lost));
  EXPECT_FALSE(workers.has_all_output([](std::size_t) { return false; }));
}

}  // namespace
}  // namespace ivy
