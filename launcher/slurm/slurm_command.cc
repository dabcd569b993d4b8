#include "launcher/slurm/slurm_command.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <csignal>
#include <memory>
#include <utility>

#include "launcher/streams/child_process.h"
#include "launcher/streams/descriptor_pump.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxBytes = 64u << 10;

// One command under way: over when it has ended and both its streams have.
class Command : public std::enable_shared_from_this<Command> {
 public:
  Command(boost::asio::io_context& loop, std::string name,
          std::function<void(Result<std::string>)> done)
      : loop_(loop), name_(std::move(name)), done_(std::move(done)), timer_(loop) {}

  void start(const std::vector<std::string>& arguments, std::chrono::milliseconds deadline) {
    Pipe out, err;
    if (!out.open() || !err.open())
      return end(errno_error(Code::kResourceExhausted, name_ + ": pipe", errno));
    ChildRequest request;
    request.arguments = arguments;
    request.stdout_fd = out.write_end();
    request.stderr_fd = err.write_end();
    Result<std::shared_ptr<ChildProcess>> child = ChildProcess::start(loop_, request);
    if (!child.ok()) return end(child.error().context(name_));
    out_ = read_from(out.take_read(), output_);
    err_ = read_from(err.take_read(), complaint_);
    child_ = std::move(child).value();
    child_->on_end([self = shared_from_this()](const ExitStatus&) { self->one_ended(); });
    timer_.expires_after(deadline);
    timer_.async_wait([self = shared_from_this(),
                       deadline](const boost::system::error_code& error) {
      if (error || !self->done_) return;
      self->child_->signal(SIGKILL);
      self->end(Error{Code::kDeadlineExceeded, self->name_ + " has not answered in " +
                                                   std::to_string(deadline.count() / 1000) + " s"});
    });
  }

 private:
  std::shared_ptr<DescriptorPump> read_from(int fd, std::string& text) {
    auto pump = std::make_shared<DescriptorPump>(loop_, fd, -1);
    DescriptorPump::Handlers handlers;
    handlers.bytes = [self = shared_from_this(), &text](std::string_view bytes) {
      text += bytes.substr(0, kMaxBytes - std::min(kMaxBytes, text.size()));
    };
    handlers.ended = [self = shared_from_this()](const std::string&) { self->one_ended(); };
    pump->start(std::move(handlers));
    return pump;
  }

  void one_ended() {
    if (++ended_ < 3 || !done_) return;
    while (!output_.empty() && output_.back() == '\n') output_.pop_back();
    while (!complaint_.empty() && complaint_.back() == '\n') complaint_.pop_back();
    const ExitStatus status = child_->ended().value_or(ExitStatus{});
    if (status.success()) return end(output_);
    end(Error{Code::kFailedPrecondition,
              name_ + ": " + (complaint_.empty() ? describe(status) : complaint_)});
  }

  void end(Result<std::string> result) {
    if (!done_) return;
    timer_.cancel();
    // Their handlers hold us, and we hold them.
    for (std::shared_ptr<DescriptorPump>* pump : {&out_, &err_})
      if (const auto held = std::exchange(*pump, nullptr)) held->stop();
    const auto done = std::exchange(done_, nullptr);
    done(std::move(result));
  }

  boost::asio::io_context& loop_;
  const std::string name_;
  std::function<void(Result<std::string>)> done_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<ChildProcess> child_;
  std::shared_ptr<DescriptorPump> out_, err_;
  std::string output_, complaint_;
  int ended_ = 0;
};

}  // namespace

void run_slurm_command(boost::asio::io_context& loop, const std::vector<std::string>& arguments,
                       std::chrono::milliseconds deadline,
                       std::function<void(Result<std::string>)> done) {
  std::string name = arguments.front();
  if (arguments.size() > 1 && arguments[1].front() != '-') name += " " + arguments[1];
  std::make_shared<Command>(loop, std::move(name), std::move(done))->start(arguments, deadline);
}

}  // namespace ivy
