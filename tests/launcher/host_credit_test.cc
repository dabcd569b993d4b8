// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/host_credit.h"

#include <gtest/gtest.h>

#include <string>

namespace ivy {
namespace {

class HostCreditTest : public testing::Test, public OutputEvents {
 protected:
  void output_consumed(int host, std::uint64_t bytes) override {
    granted_ += std::to_string(host) + ":" + std::to_string(bytes) + " ";
  }
  void output_closed() override {}
  void turn() {
    loop_.restart();
    loop_.poll();
  }

  boost::asio::io_context loop_{1};
  std::string granted_;
  bool may_grant_ = true;
  HostCredit credit_{loop_, *this, [this] { return may_grant_; }};
};

TEST_F(HostCreditTest, SumsTheBytesConsumedInOneIteration) {
  credit_.add(1, 10);
  credit_.add(0, 5);
  credit_.add(1, 7);
  credit_.add(2, 0);
  EXPECT_EQ(granted_, "") << "granting may send, so it waits for the loop";
  turn();
  EXPECT_EQ(granted_, "0:5 1:17 ");
  turn();
  EXPECT_EQ(granted_, "0:5 1:17 ");
}

TEST_F(HostCreditTest, HoldsCreditBackUntilItMayGrant) {
  may_grant_ = false;
  credit_.add(0, 5);
  turn();
  credit_.add(0, 6);
  turn();
  EXPECT_EQ(granted_, "");
  may_grant_ = true;
  credit_.report();
  EXPECT_EQ(granted_, "0:11 ");
}

}  // namespace
}  // namespace ivy
