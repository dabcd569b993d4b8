// SPDX-License-Identifier: Apache-2.0
// A child whose output is read line by line: srun, `ssh -G`. Thread: the loop's. Lifetime: keeps
// itself alive until the child has exited and both of its output streams have ended, or the loop is
// destroyed.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/streams/child_process.h"
#include "launcher/streams/descriptor_pump.h"
#include "proto/contract/env.h"

namespace ivy {

// Implemented by the owner of a child.
class LineChildEvents {
 public:
  // A line of the child's standard output, or of its standard error, without the newline.
  virtual void child_output(const std::string& line) = 0;
  virtual void child_error(const std::string& line) = 0;
  // Called once, after the last line.
  virtual void child_exited(const ExitStatus& status) = 0;

 protected:
  ~LineChildEvents() = default;
};

class LineChild final : public std::enable_shared_from_this<LineChild>,
                        public DescriptorPumpEvents {
 public:
  // Longer lines are passed on in pieces.
  static constexpr std::size_t kLineMaxBytes = 4096;

  // Returns NotFound if the program is not in PATH. `events` must live until the child has exited,
  // or until forget().
  static Result<std::shared_ptr<LineChild>> start(boost::asio::io_context& loop,
                                                  const std::vector<std::string>& command,
                                                  const Environment& environment,
                                                  LineChildEvents& events);
  LineChild(const LineChild&) = delete;
  LineChild& operator=(const LineChild&) = delete;

  void write(std::string_view bytes) { input_->write(bytes); }
  void end_input() { input_->end_writing(); }
  void signal(int number) { child_->signal(number); }
  bool has_ended() const { return is_over_; }
  // No event follows; the program continues to run.
  void forget() { events_ = nullptr; }

 private:
  LineChild(boost::asio::io_context& loop, LineChildEvents& events)
      : events_(&events), all_ended_(loop) {}
  Result<void> run(boost::asio::io_context& loop, const std::vector<std::string>& command,
                   const Environment& environment);
  // DescriptorPumpEvents
  void pump_bytes(DescriptorPump& pump, std::string_view bytes) override;
  void pump_drained(DescriptorPump&) override {}
  void pump_ended(DescriptorPump&, const std::string&) override { part_ended(); }
  void pass_line(const std::string& line, bool is_error);
  void part_ended();

  LineChildEvents* events_;  // Null after forget().
  // Never expires; its handler owns this object until all parts have ended.
  boost::asio::steady_timer all_ended_;
  std::shared_ptr<ChildProcess> child_;
  std::shared_ptr<DescriptorPump> input_;
  std::shared_ptr<DescriptorPump> output_;
  std::shared_ptr<DescriptorPump> errors_;
  std::string output_rest_;
  std::string error_rest_;
  int parts_left_ = 3;  // Standard output, standard error, and the process.
  bool is_over_ = false;
};

}  // namespace ivy
