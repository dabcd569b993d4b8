#include "agent/node/supervisor/mpi_server.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "proto/contract/exit_code.h"
#include "proto/os/descriptor.h"
#include "proto/os/listening_socket.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;

// The socket's number in the process.
constexpr int kListenFd = 3;
// A longer line is no line of a server of ours.
constexpr std::size_t kMaxLine = 16u << 10;

// Runs in the child: nothing here allocates.
[[noreturn]] void become_server(const char* program, char* const* arguments, pid_t parent,
                                bool in_step) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitInternal);
  for (const int signal : {SIGINT, SIGHUP, SIGCHLD, SIGXFSZ, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t blocked;
  sigemptyset(&blocked);
  if (in_step)
    for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&blocked, signal);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
  execv(program, arguments);
  _exit(errno == ENOENT ? kExitNotFound : kExitNotExecutable);
}

std::string how_it_ended(const std::string& name, int wait_status) {
  if (!WIFSIGNALED(wait_status))
    return name + " ended with exit code " + std::to_string(WEXITSTATUS(wait_status));
  return name + " was killed by " + signal_name(WTERMSIG(wait_status));
}

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
        events_(loop, handlers_.event),
        notes_(loop, handlers_.note) {}

  // The job's directory is ours: a socket at this path is that of the generation before.
  Result<void> listen() {
    unlink(start_.socket.c_str());
    listener_.assign(IVY_TRY(listen_unix(start_.socket, SOCK_STREAM, SOMAXCONN)));
    listener_.async_wait(stream_descriptor::wait_read,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           if (!error && !self->over_) self->spawn();
                         });
    return {};
  }

  pid_t pid() const { return pid_; }
  void drain() { events_.read_some(); }

  void ended(int wait_status) {
    pid_ = 0;
    drain();
    notes_.read_some();
    if (!std::exchange(over_, true)) handlers_.lost(how_it_ended(start_.name, wait_status));
  }

  void end() {
    over_ = true;
    boost::system::error_code ignored;
    if (listener_.is_open()) listener_.close(ignored);
    events_.close();
    notes_.close();
    life_.reset();
    if (pid_ != 0 && !start_.tidies_up) kill(pid_, SIGKILL);
    unlink(start_.socket.c_str());
  }

 private:
  std::vector<std::string> words() const {
    std::vector<std::string> words = start_.arguments;
    words.insert(words.end(), {"--listen-fd", std::to_string(kListenFd)});
    return words;
  }

  void spawn() {
    DescriptorPair out = make_pipe();
    DescriptorPair err = make_pipe();
    DescriptorPair in = make_pipe();
    if (!out || !err || !in) return fail();
    std::vector<std::string> words = this->words();
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
      dup2(in.ours.get(), STDIN_FILENO);
      dup2(out.theirs.get(), STDOUT_FILENO);
      dup2(err.theirs.get(), STDERR_FILENO);
      // dup2() onto itself would leave it close-on-exec.
      if (listener_.native_handle() == kListenFd)
        fcntl(kListenFd, F_SETFD, 0);
      else
        dup2(listener_.native_handle(), kListenFd);
      become_server(start_.program.c_str(), pointers.data(), parent, start_.in_step);
    }
    if (child < 0) return fail();
    pid_ = child;
    life_ = std::move(in.theirs);
    handlers_.born(child);
    events_.open(std::move(out.ours));
    notes_.open(std::move(err.ours));
    events_.wait(shared_from_this());
    notes_.wait(shared_from_this());
    // Our copy would keep clients waiting after its death.
    boost::system::error_code ignored;
    listener_.close(ignored);
  }

  void fail() {
    over_ = true;
    handlers_.lost(errno_error(Code::kUnavailable, "start " + start_.name, errno).message);
  }

  const MpiServerStart start_;
  const Handlers handlers_;
  stream_descriptor listener_;
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
void MpiServer::drain() { core_->drain(); }
void MpiServer::ended(int wait_status) { core_->ended(wait_status); }

}  // namespace ivy
