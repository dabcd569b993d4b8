// SPDX-License-Identifier: Apache-2.0
// Message sizes of an agent over a slow link, a fast link, and a link that becomes slow. The test
// simulates a link that drains a buffer at a fixed rate.
#include "proto/wire/message_size.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace ivy::session {
namespace {

class SlowLink {
 public:
  SlowLink(double bytes_per_second, double buffer) : rate_(bytes_per_second), buffer_(buffer) {}

  // Writes messages, each as soon as the buffer has room for it. Returns the longest time in
  // seconds that the reader waits for one.
  double longest_gap(MessageSize& size, int messages) {
    double longest = 0;
    for (int i = 0; i < messages; ++i) {
      const double before = std::max(arrived_, now_);
      arrived_ = before + static_cast<double>(size.bytes()) / rate_;
      now_ = std::max(now_, arrived_ - buffer_ / rate_);
      size.written(size.bytes(), static_cast<std::int64_t>(now_ * 1e9));
      longest = std::max(longest, arrived_ - before);
    }
    return longest;
  }
  void set_rate(double bytes_per_second) { rate_ = bytes_per_second; }
  void rest(double seconds) { now_ += seconds; }

 private:
  double rate_;
  double buffer_;
  double now_ = 1;  // Seconds, as below.
  double arrived_ = 1;
};

constexpr double kModem = 32'000;  // 256 kbit/s.
constexpr double kBuffer = 200'000;

TEST(MessageSize, SendsAMessageEverySecondOnASlowLink) {
  MessageSize size;
  SlowLink modem(kModem, kBuffer);
  EXPECT_LT(modem.longest_gap(size, 100), 0.6);
  EXPECT_LT(modem.longest_gap(size, 100), 0.2);
  EXPECT_GE(size.bytes(), MessageSize::kMin);
}

TEST(MessageSize, DoesNotMistakeABurstForAFastLink) {
  MessageSize size;
  SlowLink modem(kModem, kBuffer);
  for (int i = 0; i < 20; ++i) {
    EXPECT_LT(modem.longest_gap(size, 10), 0.6);
    modem.rest(10);
  }
}

TEST(MessageSize, UsesLargeMessagesOnAFastLink) {
  MessageSize size;
  SlowLink quick(100e6, kBuffer);
  quick.longest_gap(size, 400);
  EXPECT_EQ(size.bytes(), MessageSize::kMax);
}

TEST(MessageSize, AdaptsToALinkThatSlowsDown) {
  MessageSize size;
  SlowLink link(100e6, kBuffer);
  link.longest_gap(size, 400);
  link.set_rate(kModem);
  link.longest_gap(size, 12);
  EXPECT_LT(link.longest_gap(size, 100), 0.6);
}

}  // namespace
}  // namespace ivy::session
