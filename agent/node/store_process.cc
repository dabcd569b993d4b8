#include "agent/node/store_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/exit_code.h"
#include "proto/listening_socket.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;

constexpr std::size_t kControlBytes = 64u << 10;

Result<int> listen_for_store(const std::string& address, std::uint16_t port) {
  const Result<int> fd = listen_tcp(address, port);
  return fd.ok() ? fd : fd.error().context("store");
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

void keep_over_exec(int fd) { fcntl(fd, F_SETFD, fcntl(fd, F_GETFD) & ~FD_CLOEXEC); }

// In the child of a process with one thread: ordinary functions are allowed.
[[noreturn]] void become_store(std::vector<std::string> arguments, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitInternal);
  for (const int signal : {SIGINT, SIGHUP, SIGCHLD, SIGXFSZ, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv("/proc/self/exe", pointers.data());
  _exit(kExitInternal);
}

}  // namespace

class StoreProcess::Core : public std::enable_shared_from_this<StoreProcess::Core> {
 public:
  Core(boost::asio::io_context& loop, StoreRequest request, Handlers handlers)
      : loop_(loop),
        request_(std::move(request)),
        handlers_(std::move(handlers)),
        generation_(request_.generation),
        control_(loop) {}

  Result<void> listen() {
    for (const std::string& address : request_.addresses) {
      add_listener(IVY_TRY(listen_for_store(address, request_.port)), false);
      if (request_.torch_port != 0)
        add_listener(IVY_TRY(listen_for_store(address, request_.torch_port)), true);
    }
    return {};
  }

  void wait_for_a_client() {
    for (Listener& listener : listeners_) {
      listener.socket.async_wait(
          stream_descriptor::wait_read,
          [self = shared_from_this()](const boost::system::error_code& error) {
            if (!error) self->spawn();
          });
    }
  }

  void begin_generation(std::uint32_t generation) {
    generation_ = generation;
    if (pid_ == 0) return;
    const std::string line = "generation " + std::to_string(generation) + "\n";
    send(control_.native_handle(), line.data(), line.size(), MSG_NOSIGNAL);
  }

  pid_t pid() const { return pid_; }

  void ended(int wait_status) {
    pid_ = 0;
    if (over_) return;
    over_ = true;
    handlers_.lost(WIFSIGNALED(wait_status)
                       ? "the store was killed by signal " + std::to_string(WTERMSIG(wait_status)) +
                             " (" + strsignal(WTERMSIG(wait_status)) + ")"
                       : "the store ended with exit code " +
                             std::to_string(WEXITSTATUS(wait_status)));
  }

  void end() {
    over_ = true;
    boost::system::error_code ignored;
    for (Listener& listener : listeners_) listener.socket.close(ignored);
    if (control_.is_open()) control_.close(ignored);
    // It holds nothing that would be missed.
    if (pid_ != 0) kill(pid_, SIGKILL);
  }

 private:
  struct Listener {
    stream_descriptor socket;
    bool torch;
  };

  void add_listener(int fd, bool torch) {
    listeners_.push_back(Listener{stream_descriptor(loop_, fd), torch});
  }

  std::vector<std::string> arguments(int control_fd) {
    std::vector<std::string> words = {"ivy-rendezvous",  "serve",
                                      "--job",           request_.job_id,
                                      "--token-file",    request_.token_file,
                                      "--generation",    std::to_string(generation_),
                                      "--control-fd",    std::to_string(control_fd),
                                      "--stall-seconds", std::to_string(request_.stall_seconds)};
    for (Listener& listener : listeners_) {
      words.push_back(listener.torch ? "--torch-fd" : "--native-fd");
      words.push_back(std::to_string(listener.socket.native_handle()));
    }
    // Without a list nobody but this host's loopback would be let in.
    std::vector<std::string> peers = request_.torch_peers;
    peers.insert(peers.end(), request_.addresses.begin(), request_.addresses.end());
    words.push_back("--torch-peers");
    words.push_back(joined(peers));
    return words;
  }

  void spawn() {
    if (over_ || pid_ != 0) return;
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return fail();
    const std::vector<std::string> words = arguments(ends[1]);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
      for (Listener& listener : listeners_) keep_over_exec(listener.socket.native_handle());
      keep_over_exec(ends[1]);
      become_store(words, parent);
    }
    const int error = errno;
    close(ends[1]);
    if (child < 0) {
      close(ends[0]);
      errno = error;
      return fail();
    }
    pid_ = child;
    handlers_.born(child);
    control_.assign(ends[0]);
    wait_for_lines();
    // The sockets are the store's now; ours would only keep them open after its death.
    boost::system::error_code ignored;
    for (Listener& listener : listeners_) listener.socket.close(ignored);
  }

  void fail() {
    over_ = true;
    handlers_.lost(errno_error(Code::kUnavailable, "start the store", errno).message);
  }

  void wait_for_lines() {
    control_.async_wait(stream_descriptor::wait_read,
                        [self = shared_from_this()](const boost::system::error_code& error) {
                          if (!error && self->read_lines()) self->wait_for_lines();
                        });
  }

  bool read_lines() {
    std::array<char, 4096> bytes{};
    const ssize_t count = recv(control_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    lines_.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = lines_.find('\n'); end != std::string::npos; end = lines_.find('\n')) {
      take_line(lines_.substr(0, end));
      lines_.erase(0, end + 1);
    }
    if (lines_.size() > kControlBytes) lines_.clear();
    return true;
  }

  void take_line(std::string line) {
    for (char& c : line) {
      if (c == '\v') c = '\n';
    }
    constexpr std::string_view kLog = "log ";
    constexpr std::string_view kStall = "stall ";
    if (line.starts_with(kLog)) handlers_.note(line.substr(kLog.size()), false);
    if (line.starts_with(kStall)) handlers_.note(line.substr(kStall.size()), true);
  }

  boost::asio::io_context& loop_;
  const StoreRequest request_;
  const Handlers handlers_;
  std::uint32_t generation_;
  std::vector<Listener> listeners_;
  stream_descriptor control_;
  std::string lines_;
  pid_t pid_ = 0;
  bool over_ = false;
};

Result<std::unique_ptr<StoreProcess>> StoreProcess::listen(boost::asio::io_context& loop,
                                                           StoreRequest request,
                                                           Handlers handlers) {
  auto core = std::make_shared<Core>(loop, std::move(request), std::move(handlers));
  const Result<void> listening = core->listen();
  if (!listening.ok()) return listening.error();
  core->wait_for_a_client();
  return std::unique_ptr<StoreProcess>(new StoreProcess(std::move(core)));
}

StoreProcess::StoreProcess(std::shared_ptr<Core> core) : core_(std::move(core)) {}
StoreProcess::~StoreProcess() { core_->end(); }
void StoreProcess::begin_generation(std::uint32_t generation) {
  core_->begin_generation(generation);
}
pid_t StoreProcess::pid() const { return core_->pid(); }
void StoreProcess::ended(int wait_status) { core_->ended(wait_status); }

}  // namespace ivy
