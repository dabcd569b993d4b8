// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm/slurm_command.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <memory>
#include <utility>

#include "launcher/streams/line_child.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxBytes = 64u << 10;

// The output of a command; its timer kills the command if it takes too long.
struct CommandOutput {
  explicit CommandOutput(boost::asio::io_context& loop) : timer(loop) {}

  boost::asio::steady_timer timer;
  std::string output, errors;
};

void add_line(std::string& text, const std::string& line) {
  text += (text.empty() ? "" : "\n") + line;
  text.resize(std::min(text.size(), kMaxBytes));
}

}  // namespace

void run_slurm_command(boost::asio::io_context& loop, const std::vector<std::string>& arguments,
                       std::chrono::milliseconds deadline,
                       std::function<void(Result<std::string>)> done) {
  std::string name = arguments.front();
  if (arguments.size() > 1 && arguments[1].front() != '-') name += " " + arguments[1];
  const auto printed = std::make_shared<CommandOutput>(loop);
  LineChild::Handlers handlers;
  handlers.output_line = [printed](const std::string& line) { add_line(printed->output, line); };
  handlers.error_line = [printed](const std::string& line) { add_line(printed->errors, line); };
  handlers.ended = [printed, name, done](const ExitStatus& status) {
    printed->timer.cancel();
    if (status.success()) return done(printed->output);
    done(Error{Code::kFailedPrecondition,
               name + ": " + (printed->errors.empty() ? describe(status) : printed->errors)});
  };
  const auto child = LineChild::start(loop, arguments, tool_environment(), std::move(handlers));
  if (!child.ok()) return done(child.error().context(name));
  (*child)->end_input();
  printed->timer.expires_after(deadline);
  printed->timer.async_wait([command = *child, name, deadline,
                             done](const boost::system::error_code& error) {
    if (error || command->has_ended()) return;
    command->forget();
    command->signal(SIGKILL);
    done(Error{Code::kDeadlineExceeded,
               name + " did not answer within " + std::to_string(deadline.count() / 1000) + " s"});
  });
}

Awaitable<Result<std::string>> slurm_answer(Sequence& sequence, std::vector<std::string> arguments,
                                            std::chrono::milliseconds deadline) {
  const auto run = [&](const Arrival<Result<std::string>>& arrive) {
    run_slurm_command(sequence.loop(), arguments, deadline, arrive);
  };
  co_return co_await sequence.wait_posted<Result<std::string>>(run);
}

}  // namespace ivy
