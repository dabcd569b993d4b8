#include "agent/node/supervisor/mpi_server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <utility>

#include "agent/node/spawn/server_child.h"
#include "proto/os/descriptor.h"
#include "proto/os/listening_socket.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;

// The sockets' numbers in the process.
constexpr int kListenFd = 3;
constexpr int kLoopbackFd = 4;
// A longer line is no line of a server of ours.
constexpr std::size_t kMaxLine = 16u << 10;

// A pipe from the process, as lines.
class Lines {
 public:
  Lines(boost::asio::io_context& loop, std::function<void(const std::string&)> take)
      : pipe_(loop), take_(std::move(take)) {}

  void open(Descriptor reader) {
    fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    pipe_.assign(reader.release());
  }

  // `alive` is held while the loop waits.
  void wait(std::shared_ptr<void> alive) {
    pipe_.async_wait(stream_descriptor::wait_read,
                     [this, alive = std::move(alive)](const boost::system::error_code& error) {
                       if (!error && read_some()) wait(alive);
                     });
  }

  // False when the process has closed its end.
  bool read_some() {
    if (!pipe_.is_open()) return false;
    std::array<char, 4096> bytes{};
    ssize_t count = 0;
    while ((count = read(pipe_.native_handle(), bytes.data(), bytes.size())) > 0)
      take({bytes.data(), static_cast<std::size_t>(count)});
    return count < 0 && (errno == EAGAIN || errno == EINTR);
  }

  void close() {
    boost::system::error_code ignored;
    if (pipe_.is_open()) pipe_.close(ignored);
  }

 private:
  void take(std::string_view bytes) {
    text_ += bytes;
    for (std::size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      const std::string line = text_.substr(0, end);
      text_.erase(0, end + 1);
      take_(line);
    }
    if (text_.size() > kMaxLine) text_.clear();
  }

  stream_descriptor pipe_;
  const std::function<void(const std::string&)> take_;
  std::string text_;
};

}  // namespace

class MpiServer::Core : public std::enable_shared_from_this<MpiServer::Core> {
 public:
  Core(boost::asio::io_context& loop, MpiServerStart start, Handlers handlers)
      : start_(std::move(start)),
        handlers_(std::move(handlers)),
        listener_(loop),
        loopback_(loop),
        events_(loop, handlers_.event),
        notes_(loop, handlers_.note) {}

  // The job's directory is ours: a socket at this path is that of the generation before.
  Result<void> listen() {
    if (!start_.socket.empty()) {
      unlink(start_.socket.c_str());
      listener_.assign(IVY_TRY(listen_unix(start_.socket, SOCK_STREAM, SOMAXCONN)));
      wait_for_a_client(listener_);
    }
    loopback_.assign(IVY_TRY(listen_tcp("127.0.0.1", 0)));
    wait_for_a_client(loopback_);
    port_ = bound_port(loopback_.native_handle());
    return {};
  }

  std::uint16_t port() const { return port_; }
  pid_t pid() const { return pid_; }
  void drain() { events_.read_some(); }

  void ended(int wait_status) {
    pid_ = 0;
    drain();
    notes_.read_some();
    if (!std::exchange(over_, true)) handlers_.lost(server_end(start_.name, wait_status));
  }

  void end() {
    over_ = true;
    stop_listening();
    events_.close();
    notes_.close();
    life_.reset();
    if (pid_ != 0 && !start_.tidies_up) kill(pid_, SIGKILL);
    unlink(start_.socket.c_str());
  }

 private:
  void wait_for_a_client(stream_descriptor& listener) {
    listener.async_wait(stream_descriptor::wait_read,
                        [self = shared_from_this()](const boost::system::error_code& error) {
                          if (!error && !self->over_ && self->pid_ == 0) self->spawn();
                        });
  }

  void stop_listening() {
    boost::system::error_code ignored;
    for (stream_descriptor* listener : {&listener_, &loopback_})
      if (listener->is_open()) listener->close(ignored);
  }

  ServerChild child_of(int in, int out, int err) {
    ServerChild child{start_.program, start_.arguments, {}, start_.in_step};
    child.descriptors = {{in, STDIN_FILENO}, {out, STDOUT_FILENO}, {err, STDERR_FILENO}};
    const auto give = [&](const char* word, stream_descriptor& listener, int number) {
      if (!listener.is_open()) return;
      child.arguments.insert(child.arguments.end(), {word, std::to_string(number)});
      child.descriptors.emplace_back(listener.native_handle(), number);
    };
    give("--listen-fd", listener_, kListenFd);
    give("--loopback-fd", loopback_, kLoopbackFd);
    return child;
  }

  void spawn() {
    DescriptorPair out = make_pipe();
    DescriptorPair err = make_pipe();
    DescriptorPair in = make_pipe();
    if (!out || !err || !in) return fail();
    const pid_t child = start_server(child_of(in.ours.get(), out.theirs.get(), err.theirs.get()));
    if (child < 0) return fail();
    pid_ = child;
    life_ = std::move(in.theirs);
    handlers_.born(child);
    events_.open(std::move(out.ours));
    notes_.open(std::move(err.ours));
    events_.wait(shared_from_this());
    notes_.wait(shared_from_this());
    // Our copies would keep clients waiting after its death.
    stop_listening();
  }

  void fail() {
    over_ = true;
    handlers_.lost(errno_error(Code::kUnavailable, "start " + start_.name, errno).message);
  }

  const MpiServerStart start_;
  const Handlers handlers_;
  stream_descriptor listener_;
  stream_descriptor loopback_;
  std::uint16_t port_ = 0;
  Lines events_;
  Lines notes_;
  Descriptor life_;  // Its standard input, which ends when it is to end.
  pid_t pid_ = 0;
  bool over_ = false;
};

Result<std::unique_ptr<MpiServer>> MpiServer::listen(boost::asio::io_context& loop,
                                                     MpiServerStart start, Handlers handlers) {
  auto core = std::make_shared<Core>(loop, std::move(start), std::move(handlers));
  IVY_CHECK(core->listen());
  return std::unique_ptr<MpiServer>(new MpiServer(std::move(core)));
}

MpiServer::MpiServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}
MpiServer::~MpiServer() { core_->end(); }
pid_t MpiServer::pid() const { return core_->pid(); }
std::uint16_t MpiServer::port() const { return core_->port(); }
void MpiServer::drain() { core_->drain(); }
void MpiServer::ended(int wait_status) { core_->ended(wait_status); }

}  // namespace ivy
