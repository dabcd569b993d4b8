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

void add_line(std::string& text, const std::string& line) {
  text += (text.empty() ? "" : "\n") + line;
  text.resize(std::min(text.size(), kMaxBytes));
}

// One run of a command. Its timer keeps it alive, and kills the command if it takes too long.
class SlurmCommand final : public LineChildEvents,
                           public std::enable_shared_from_this<SlurmCommand> {
 public:
  SlurmCommand(boost::asio::io_context& loop, std::function<void(Result<std::string>)> done)
      : loop_(loop), timer_(loop), done_(std::move(done)) {}

  void run(const std::vector<std::string>& arguments, std::chrono::milliseconds deadline) {
    name_ = arguments.front();
    if (arguments.size() > 1 && arguments[1].front() != '-') name_ += " " + arguments[1];
    const auto child = LineChild::start(loop_, arguments, tool_environment(), *this);
    if (!child.ok()) return done_(child.error().context(name_));
    child_ = *child;
    child_->end_input();
    timer_.expires_after(deadline);
    timer_.async_wait(
        [self = shared_from_this(), deadline](const boost::system::error_code& error) {
          if (!error && !self->child_->has_ended()) self->give_up(deadline);
        });
  }

 private:
  void give_up(std::chrono::milliseconds deadline) {
    child_->forget();
    child_->signal(SIGKILL);
    done_(Error{Code::kDeadlineExceeded, name_ + " did not answer within " +
                                             std::to_string(deadline.count() / 1000) + " s"});
  }
  void child_output(const std::string& line) override { add_line(output_, line); }
  void child_error(const std::string& line) override { add_line(errors_, line); }
  void child_exited(const ExitStatus& status) override {
    timer_.cancel();
    if (status.is_success()) return done_(output_);
    done_(Error{Code::kFailedPrecondition,
                name_ + ": " + (errors_.empty() ? describe(status) : errors_)});
  }

  boost::asio::io_context& loop_;
  boost::asio::steady_timer timer_;
  const std::function<void(Result<std::string>)> done_;
  std::string name_;
  std::shared_ptr<LineChild> child_;
  std::string output_, errors_;
};

}  // namespace

void run_slurm_command(boost::asio::io_context& loop, const std::vector<std::string>& arguments,
                       std::chrono::milliseconds deadline,
                       std::function<void(Result<std::string>)> done) {
  std::make_shared<SlurmCommand>(loop, std::move(done))->run(arguments, deadline);
}

Awaitable<Result<std::string>> slurm_answer(Sequence& sequence, std::vector<std::string> arguments,
                                            std::chrono::milliseconds deadline) {
  const auto run = [&](const Arrival<Result<std::string>>& arrive) {
    run_slurm_command(sequence.loop(), arguments, deadline, arrive);
  };
  co_return co_await sequence.wait_posted<Result<std::string>>(run);
}

}  // namespace ivy
