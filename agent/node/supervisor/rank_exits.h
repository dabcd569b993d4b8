// SPDX-License-Identifier: Apache-2.0
// Handles the exit of one rank on this host when the job continues (--on-failure shrink, replace):
// notifies the job's store, and may restart the rank alone. Thread: the loop's. Lifetime: destroy
// it outside its handlers.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "agent/node/supervisor/device_watch.h"
#include "agent/node/workers/replacements.h"
#include "proto/contract/exit_code.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class RankExits {
 public:
  struct Handlers {
    std::function<void(std::uint32_t rank, std::uint32_t rejoins)> tell_store;
    std::function<bool(std::uint32_t rank)> is_over;
    // The accelerators that only this rank has, by UUID: their memory must be free before it
    // starts.
    std::function<std::vector<std::string>(std::uint32_t rank)> own_devices;
    std::function<void(std::uint32_t rank, std::uint32_t rejoins)> start;
    // A stop started before this rank could be restarted.
    std::function<void(std::uint32_t rank)> refuse;
    std::function<void()> changed;  // awaits() may say something else now.
  };
  RankExits(boost::asio::io_context& loop, DeviceWatch& devices, Handlers handlers);

  void begin(const HostPlan& plan);
  // A rank's own process has ended; the launcher has been told.
  void ended(std::uint32_t rank, std::uint32_t rejoins, const ExitStatus& status);
  void order(const ReplaceWorker& request);
  // The process and the output of a rank may be over now.
  void check_soon();
  // Call when a stop starts: no rank is restarted after it.
  void give_up();
  bool awaits() const { return replacements_.awaits() || !awaiting_devices_.empty(); }

 private:
  void check();
  void await_devices(const Replacements::Ordered& due);

  boost::asio::io_context& loop_;
  DeviceWatch& devices_;
  const Handlers handlers_;
  Replacements replacements_;
  std::set<std::uint32_t> awaiting_devices_;
  bool goes_on_ = false;  // The job, when a rank has ended.
  bool is_check_posted_ = false;
  std::uint32_t generation_ = 0;
  boost::asio::steady_timer timer_;
};

}  // namespace ivy
