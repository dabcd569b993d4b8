// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/metrics_page.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

TEST(MetricsPage, WritesEachMetricWithItsSamples) {
  MetricsPage page("ivyrun_", "job_id=\"7\"");
  page.begin("rank_running", "gauge", "1 while the rank is running.");
  page.add("rank=\"0\"", 1);
  page.add("", 1796052338.125);
  EXPECT_EQ(page.take(),
            "# HELP ivyrun_rank_running 1 while the rank is running.\n"
            "# TYPE ivyrun_rank_running gauge\n"
            "ivyrun_rank_running{job_id=\"7\",rank=\"0\"} 1\n"
            "ivyrun_rank_running{job_id=\"7\"} 1796052338.125\n");
}

TEST(MetricsPage, EscapesValuesOfLabels) {
  EXPECT_EQ(quoted_label("a\"b\\c\nd"), "\"a\\\"b\\\\c\\nd\"");
}

}  // namespace
}  // namespace ivy
