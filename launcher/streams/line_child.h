// SPDX-License-Identifier: Apache-2.0
// A child whose output is read line by line: srun, `ssh -G`. Thread: the loop's. Lifetime: keeps
// itself alive until the child has exited and both of its output streams have ended.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/streams/child_process.h"
#include "launcher/streams/descriptor_pump.h"
#include "proto/contract/env.h"

namespace ivy {

class LineChild : public std::enable_shared_from_this<LineChild> {
 public:
  struct Handlers {
    std::function<void(const std::string&)> output_line;  // Receives each line without its newline.
    std::function<void(const std::string&)> error_line;
    // Called once, after the last line.
    std::function<void(const ExitStatus&)> ended;
  };

  // Longer lines are passed on in pieces.
  static constexpr std::size_t kLineMaxBytes = 4096;

  // Returns NotFound if the program is not in PATH.
  static Result<std::shared_ptr<LineChild>> start(boost::asio::io_context& loop,
                                                  const std::vector<std::string>& command,
                                                  const Environment& environment,
                                                  Handlers handlers);
  LineChild(const LineChild&) = delete;
  LineChild& operator=(const LineChild&) = delete;

  void write(std::string_view bytes) { input_->write(bytes); }
  void end_input() { input_->end_writing(); }
  void signal(int number) { child_->signal(number); }
  bool has_ended() const { return is_over_; }
  // Stops calling handlers; the program continues to run.
  void forget() { handlers_ = {}; }

 private:
  explicit LineChild(Handlers handlers) : handlers_(std::move(handlers)) {}
  Result<void> run(boost::asio::io_context& loop, const std::vector<std::string>& command,
                   const Environment& environment);
  void watch(const std::shared_ptr<DescriptorPump>& pump, bool is_error);
  void take(std::string& rest, std::string_view bytes, bool is_error);
  void pass_line(const std::string& line, bool is_error);
  void part_ended();

  Handlers handlers_;
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
