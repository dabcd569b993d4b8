// SPDX-License-Identifier: Apache-2.0
// Events of devices, next to the rank that failed.
#include "launcher/report/device_lines.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

WorkerEnd failed(int rank, const std::string& host) {
  WorkerEnd end;
  end.rank = rank;
  end.host = host;
  end.at_ns = 12'000'000'000;
  return end;
}

const std::vector<DeviceNote> kNotes = {
    {"node06", "mlx5_0 port 1", "went from ACTIVE to DOWN", std::nullopt, std::nullopt},
    {"node07", "GPU 1", "1 uncorrected ECC error", 25, std::nullopt},
    {"node07", "GPU 3", "Xid 79, fallen off the bus", 27, 10'000'000'000}};

TEST(DeviceLinesTest, PrintsTheNearestFirst) {
  const WorkerEnd first = failed(27, "node07");
  EXPECT_EQ(device_lines(kNotes, &first),
            (std::vector<std::string>{
                "GPU 3 on node07 (rank 27): Xid 79, fallen off the bus, 2.0 s before",
                "GPU 1 on node07 (rank 25): 1 uncorrected ECC error",
                "mlx5_0 port 1 on node06: went from ACTIVE to DOWN"}));
  EXPECT_EQ(device_reason(kNotes, first), "GPU 3: Xid 79, fallen off the bus");
  EXPECT_EQ(device_reason(kNotes, failed(3, "node01")), "");
  EXPECT_EQ(device_lines(kNotes, nullptr).front(),
            "mlx5_0 port 1 on node06: went from ACTIVE to DOWN");
  EXPECT_TRUE(device_lines({}, &first).empty());
}

TEST(DeviceLinesTest, TruncatesALongList) {
  const std::vector<DeviceNote> many(20, kNotes[0]);
  const std::vector<std::string> lines = device_lines(many, nullptr);
  ASSERT_EQ(lines.size(), 9u);
  EXPECT_EQ(lines.back(), "and 12 more");
}

}  // namespace
}  // namespace ivy
