#include "launcher/job/rank_rows.h"

#include <gtest/gtest.h>

#include "launcher/job/metrics_text.h"
#include "launcher/job/page_text.h"
#include "proto/wire/operation.h"

namespace ivy {
namespace {

// Two ranks of one host; rank 0 has printed a second ago, rank 1 has ended.
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

TEST(RankRows, SayWhatEachRankDoesAndUses) {
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
  const std::string gpus = "ivyrun_rank_gpu_memory_bytes{job=\"3f2a\",rank=\"0\",host=\"a\\\"b\"} ";
  const std::string busy = "ivyrun_rank_gpu_busy_ratio{job=\"3f2a\",rank=\"0\",host=\"a\\\"b\"} ";
  const MetricsInputs job{"3f2a", "bert", "train.py", 1'500, 1, {}};
  PageInputs page;
  page.job = job;
  const Scene measured(2);
  EXPECT_EQ(measured.ranks.ranks(0).devices(), 2u);
  const std::string text = metrics_text(job, measured.ranks);
  EXPECT_NE(text.find(gpus + "5368709120\n"), std::string::npos) << text;
  EXPECT_NE(text.find(busy + "0.87\n"), std::string::npos) << text;
  const std::string shown = page_text(page, {}, measured.ranks);
  EXPECT_NE(shown.find("<td class=\"n\">87</td><td class=\"n\">5.0 GiB</td>"), std::string::npos)
      << shown;
  const Scene unmeasured(1);
  EXPECT_NE(metrics_text(job, unmeasured.ranks).find(gpus), std::string::npos);
  EXPECT_EQ(metrics_text(job, unmeasured.ranks).find(busy), std::string::npos);
  const Scene without;
  EXPECT_EQ(metrics_text(job, without.ranks).find("gpu"), std::string::npos);
  EXPECT_EQ(page_text(page, {}, without.ranks).find("GPU"), std::string::npos);
}

TEST(MetricsText, IsWhatPrometheusReads) {
  const Scene scene;
  MetricsInputs job{"3f2a", "bert \"large\"", "train.py", 1'500, 1, {}};
  const std::string text = metrics_text(job, scene.ranks);
  for (const std::string_view line :
       {"ivyrun_job_info{job=\"3f2a\",name=\"bert \\\"large\\\"\",program=\"train.py\"} 1\n",
        "ivyrun_job_start_time_seconds{job=\"3f2a\"} 1.5\n",
        "# TYPE ivyrun_rank_cpu_seconds_total counter\n",
        "ivyrun_rank_cpu_seconds_total{job=\"3f2a\",rank=\"0\",host=\"a\\\"b\"} 2.5\n",
        "ivyrun_rank_running{job=\"3f2a\",rank=\"1\",host=\"a\\\"b\"} 0\n",
        "ivyrun_rank_output_age_seconds{job=\"3f2a\",rank=\"0\",host=\"a\\\"b\"} 1\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  EXPECT_EQ(text.find("exit_code"), std::string::npos);
  job.exit_code = 3;
  EXPECT_NE(metrics_text(job, scene.ranks).find("ivyrun_job_exit_code{job=\"3f2a\"} 3\n"),
            std::string::npos);
}

TEST(PageText, ShowsRanksAndRunsNothing) {
  Scene scene;
  PageInputs inputs;
  inputs.job = {"3f2a", "bert", "train.py", 1'500, 0, {}};
  inputs.command = {"train.py", "</code><script>alert(1)</script>"};
  inputs.state = "running";
  inputs.now_unix_ms = 61'500;
  inputs.refresh_s = 5;
  scene.ranks.mutable_ranks(0)->set_operation("\"<img src=x>\x1b[2J");
  const ctl::RanksDescription before = scene.ranks;
  scene.ranks.mutable_ranks(0)->set_cpu_ms(3'000);
  scene.ranks.mutable_ranks(0)->set_sampled_ns(1'000'000'000);
  const std::string text = page_text(inputs, before, scene.ranks);
  for (const std::string_view part :
       {"default-src 'none'", "content=\"5\"", "<h1>bert</h1>", "running, 00:01:00, attempt 1",
        "as of 1970-01-01 00:01:01 UTC", "&lt;script&gt;", "<td>a&quot;b</td>",
        "<td class=\"n\">50</td>", "<td class=\"n\">1 MiB</td>", "&quot;&lt;img src=x&gt;",
        "<tr class=\"bad\">"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
  for (const std::string_view part : {"<script", "<img", "\x1b"})
    EXPECT_EQ(text.find(part), std::string::npos) << part;
  inputs.job.exit_code = 3;
  inputs.summary = "rank 1 failed first";
  const std::string end = page_text(inputs, {}, scene.ranks);
  EXPECT_NE(end.find("ended with exit code 3"), std::string::npos) << end;
  EXPECT_NE(end.find("<pre>rank 1 failed first</pre>"), std::string::npos);
  EXPECT_EQ(end.find("refresh"), std::string::npos) << "It does not change any more.";
}

}  // namespace
}  // namespace ivy
