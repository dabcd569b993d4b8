// Ctrl-Z: announces the pause to every host before this process is stopped. Thread: the loop's.
// Lifetime: destroy it outside its handlers.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>

#include "launcher/job/job_context.h"

namespace ivy {

class Suspension {
 public:
  explicit Suspension(JobContext& job) : job_(job), timer_(job.loop) {}

  // Calls ready when the announcement has gone out, or after 2 s.
  void begin(std::function<void()> ready);
  void end();

 private:
  void wait(std::function<void()> ready, std::int64_t until_ns);

  JobContext& job_;
  boost::asio::steady_timer timer_;
};

}  // namespace ivy
