// SPDX-License-Identifier: Apache-2.0
#include "launcher/streams/line_child.h"

#include <algorithm>
#include <utility>

namespace ivy {

Result<std::shared_ptr<LineChild>> LineChild::start(boost::asio::io_context& loop,
                                                    const std::vector<std::string>& command,
                                                    const Environment& environment,
                                                    LineChildEvents& events) {
  std::shared_ptr<LineChild> made(new LineChild(loop, events));
  IVY_CHECK(made->run(loop, command, environment));
  return made;
}

Result<void> LineChild::run(boost::asio::io_context& loop, const std::vector<std::string>& command,
                            const Environment& environment) {
  ChildRequest request;
  request.arguments = command;
  request.environment = environment_texts(environment);
  PipedChild child = IVY_TRY(start_piped(loop, request));
  child_ = child.process;
  input_ = std::make_shared<DescriptorPump>(loop, *this, -1, child.input.release());
  output_ = std::make_shared<DescriptorPump>(loop, *this, child.output.release(), -1);
  errors_ = std::make_shared<DescriptorPump>(loop, *this, child.errors.release(), -1);
  all_ended_.expires_at(boost::asio::steady_timer::time_point::max());
  all_ended_.async_wait([self = shared_from_this()](const boost::system::error_code&) {});
  output_->start_reading();
  errors_->start_reading();
  child_->on_end([this](const ExitStatus&) { part_ended(); });
  return {};
}

void LineChild::pump_bytes(DescriptorPump& pump, std::string_view bytes) {
  const bool is_error = &pump == errors_.get();
  std::string& rest = is_error ? error_rest_ : output_rest_;
  rest.append(bytes);
  for (;;) {
    const std::size_t newline = rest.find('\n');
    if (newline == std::string::npos && rest.size() < kLineMaxBytes) return;
    const std::size_t end = std::min(newline, kLineMaxBytes);
    const std::string line = rest.substr(0, end);
    rest.erase(0, end == newline ? end + 1 : end);
    pass_line(line, is_error);
  }
}

void LineChild::pass_line(const std::string& line, bool is_error) {
  if (events_ == nullptr) return;
  is_error ? events_->child_error(line) : events_->child_output(line);
}

void LineChild::part_ended() {
  if (--parts_left_ > 0) return;
  is_over_ = true;
  const std::shared_ptr<LineChild> self = shared_from_this();
  all_ended_.cancel();
  input_->stop();
  if (!output_rest_.empty()) pass_line(std::exchange(output_rest_, {}), false);
  if (!error_rest_.empty()) pass_line(std::exchange(error_rest_, {}), true);
  if (events_ != nullptr) events_->child_exited(child_->ended().value_or(ExitStatus{}));
}

}  // namespace ivy
