// SPDX-License-Identifier: Apache-2.0
#include "launcher/streams/line_child.h"

#include <algorithm>
#include <utility>

namespace ivy {

Result<std::shared_ptr<LineChild>> LineChild::start(boost::asio::io_context& loop,
                                                    const std::vector<std::string>& command,
                                                    const Environment& environment,
                                                    Handlers handlers) {
  std::shared_ptr<LineChild> made(new LineChild(std::move(handlers)));
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
  input_ = std::make_shared<DescriptorPump>(loop, -1, child.input.release());
  output_ = std::make_shared<DescriptorPump>(loop, child.output.release(), -1);
  errors_ = std::make_shared<DescriptorPump>(loop, child.errors.release(), -1);
  input_->use_for_writing([] {});
  watch(output_, false);
  watch(errors_, true);
  child_->on_end([self = shared_from_this()](const ExitStatus&) { self->part_ended(); });
  return {};
}

void LineChild::watch(const std::shared_ptr<DescriptorPump>& pump, bool is_error) {
  DescriptorPump::Handlers handlers;
  const std::shared_ptr<LineChild> self = shared_from_this();
  handlers.bytes = [self, is_error](std::string_view bytes) {
    self->take(is_error ? self->error_rest_ : self->output_rest_, bytes, is_error);
  };
  handlers.ended = [self](const std::string&) { self->part_ended(); };
  pump->start(std::move(handlers));
}

void LineChild::take(std::string& rest, std::string_view bytes, bool is_error) {
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
  // A copy, because the receiver may call forget().
  const auto handler = is_error ? handlers_.error_line : handlers_.output_line;
  if (handler) handler(line);
}

void LineChild::part_ended() {
  if (--parts_left_ > 0) return;
  is_over_ = true;
  input_->stop();
  // The handlers refer to us and we own them: break the cycle.
  output_.reset();
  errors_.reset();
  if (!output_rest_.empty()) pass_line(std::exchange(output_rest_, {}), false);
  if (!error_rest_.empty()) pass_line(std::exchange(error_rest_, {}), true);
  const auto ended = std::exchange(handlers_, {}).ended;
  if (ended) ended(child_->ended().value_or(ExitStatus{}));
}

}  // namespace ivy
