// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/ranks/rank_rows.h"

#include <gtest/gtest.h>

#include "launcher/job/core/metrics_text.h"
#include "proto/wire/operation.h"

namespace ivy {
namespace {

// Two ranks on one host: rank 0 printed a second ago, and rank 1 has exited.
struct Scene {
  explicit Scene(std::uint32_t devices = 0) {
    JobPlan plan;
    plan.world_size = 2;
    PlannedHost host;
    host.name = "a\"b";
    host.workers = {{0, 0}, {1, 1}};
    plan.hosts.push_back(host);
    workers.begin(plan);
    workers.started(workers[0], 77);
    workers[0].last_output_ns = 1'000'000'000;
    workers[1].ended = true;
    workers[1].end.status.code = 3;
    HostOperations answer;
    answer.host = "a";
    RankUsage& usage = *answer.operations.add_usage();
    usage.set_rank(0);
    usage.set_cpu_ms(2'500);
    usage.set_memory_bytes(1 << 20);
    usage.set_processes(2);
    usage.set_devices(devices);
    usage.set_device_bytes(std::uint64_t{5} << 30);
    usage.set_device_percent(devices == 2 ? 87 : -1);
    for (const std::uint32_t unknown : {2U, 9U, 0x8000'0000U, 4'000'000'000U}) {
      answer.operations.add_usage()->set_rank(unknown);
      answer.operations.add_ranks()->set_rank(unknown);
    }
    RankOperations& rank = *answer.operations.add_ranks();
    OperationState& state = *rank.add_running();
    state.set_operation(static_cast<std::uint32_t>(comm_status::Operation::kAllReduce));
    state.set_sequence(812);
    state.set_age_ms(3'200);
    add_rank_rows(workers, {answer}, 2'000'000'000, ranks);
  }
  JobWorkers workers;
  ctl::RanksDescription ranks;
};

TEST(RankRows, ShowActivityAndUsageOfEachRank) {
  const Scene scene;
  ASSERT_EQ(scene.ranks.ranks_size(), 2);
  const ctl::RankRow& first = scene.ranks.ranks(0);
  EXPECT_EQ(first.state(), "running");
  EXPECT_EQ(first.pid(), 77);
  EXPECT_EQ(first.output_age_ms(), 1'000);
  EXPECT_EQ(first.cpu_ms(), 2'500u);
  EXPECT_EQ(first.operation(), "all_reduce #812 for 3.2 s");
  const ctl::RankRow& second = scene.ranks.ranks(1);
  EXPECT_FALSE(second.has_usage());
  EXPECT_EQ(second.output_age_ms(), -1);
  EXPECT_NE(second.state().find('3'), std::string::npos) << second.state();
}

TEST(RankRows, HaveDevicesOnlyWhereARankUsesSome) {
  const std::string gpus =
      "ivyrun_rank_gpu_memory_bytes{job_id=\"3f2a\",rank=\"0\",host=\"a\\\"b\"} ";
  const std::string busy =
      "ivyrun_rank_gpu_busy_ratio{job_id=\"3f2a\",rank=\"0\",host=\"a\\\"b\"} ";
  const MetricsInputs job{"3f2a", "bert", "train.py", 1'500, 1, {}};
  const Scene measured(2);
  EXPECT_EQ(measured.ranks.ranks(0).devices(), 2u);
  const std::string text = metrics_text(job, measured.ranks);
  EXPECT_NE(text.find(gpus + "5368709120\n"), std::string::npos) << text;
  EXPECT_NE(text.find(busy + "0.87\n"), std::string::npos) << text;
  const Scene unmeasured(1);
  EXPECT_NE(metrics_text(job, unmeasured.ranks).find(gpus), std::string::npos);
  EXPECT_EQ(metrics_text(job, unmeasured.ranks).find(busy), std::string::npos);
  const Scene without;
  EXPECT_EQ(metrics_text(job, without.ranks).find("gpu"), std::string::npos);
}

TEST(MetricsText, IsValidPrometheusText) {
  const Scene scene;
  MetricsInputs job{"3f2a", "bert \"large\"", "train.py", 1'500, 1, {}};
  const std::string text = metrics_text(job, scene.ranks);
  for (const std::string_view line :
       {"ivyrun_job_info{job_id=\"3f2a\",name=\"bert \\\"large\\\"\",program=\"train.py\"} 1\n",
        "ivyrun_job_start_time_seconds{job_id=\"3f2a\"} 1.5\n",
        "# TYPE ivyrun_rank_cpu_seconds_total counter\n",
        "ivyrun_rank_cpu_seconds_total{job_id=\"3f2a\",rank=\"0\",host=\"a\\\"b\"} 2.5\n",
        "ivyrun_rank_running{job_id=\"3f2a\",rank=\"1\",host=\"a\\\"b\"} 0\n",
        "ivyrun_rank_output_age_seconds{job_id=\"3f2a\",rank=\"0\",host=\"a\\\"b\"} 1\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  EXPECT_EQ(text.find("exit_code"), std::string::npos);
  job.exit_code = 3;
  EXPECT_NE(metrics_text(job, scene.ranks).find("ivyrun_job_exit_code{job_id=\"3f2a\"} 3\n"),
            std::string::npos);
}

TEST(RankRows, ShowPythonStacks) {
  Scene scene;
  HostEvidence evidence;
  const auto add = [&](std::uint32_t rank, const std::string& file, const std::string& rest) {
    RankEvidence& one = *evidence.add_ranks();
    one.set_rank(rank);
    one.set_tool("faulthandler");
    one.set_stack("Stack (most recent call first):\n  File \"" + file +
                  "\", line 7 in all_reduce\n" + rest);
  };
  add(0, "/x/train.py", "");
  add(1, "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py",
      "  File \"/x/train.py\", line 12 in <module>\n");
  add(9, "/x/train.py", "");
  add_places(evidence, scene.ranks);
  EXPECT_EQ(scene.ranks.ranks(0).operation(), "all_reduce #812 for 3.2 s")
      << "ivycomm's own report is preferred";
  EXPECT_EQ(scene.ranks.ranks(1).operation(), "torch's all_reduce at train.py:12");
  scene.ranks.mutable_ranks(1)->clear_operation();
  evidence.mutable_ranks()->erase(evidence.ranks().begin() + 1);
  evidence.mutable_ranks(0)->set_rank(1);
  add_places(evidence, scene.ranks);
  EXPECT_EQ(scene.ranks.ranks(1).operation(), "all_reduce (/x/train.py:7)");
}

}  // namespace
}  // namespace ivy
