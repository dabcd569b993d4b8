#include "rendezvous/server/serve.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "proto/contract/build.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/listening_socket.h"
#include "proto/os/process.h"
#include "proto/wire/handshake.h"
#include "rendezvous/engine/explanation.h"
#include "rendezvous/server/job_process.h"
#include "rendezvous/server/job_server.h"
#include "rendezvous/server/leaf_serve.h"
#include "rendezvous/server/serve_options.h"
#include "rendezvous/server/server.h"
#include "rendezvous/server/supervisor_socket.h"
#include "rendezvous/server/token_directory.h"

namespace ivy::store {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::size_t kMaxStallBytes = 32u << 10;
// A token is 64 digits; the parser refuses a longer text.
constexpr std::size_t kMaxTokenText = 256;

// Listens on what a user wrote: "10.0.0.1:4123" or "[::]:0".
Result<int> listen_on_text(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::optional<std::uint16_t> port =
      colon != std::string::npos ? to_number<std::uint16_t>(text.substr(colon + 1)) : std::nullopt;
  if (!port) return wrong_option(text + ": ADDRESS:PORT is needed");
  return listen_tcp(host_of(text), *port);
}

// Adds the sockets that are named by address to those that were inherited.
Result<void> listen_on_addresses(ServeOptions& options) {
  if (!options.listen.empty())
    options.native_fds.push_back(IVY_TRY(listen_on_text(options.listen)));
  if (!options.torch.empty()) options.torch_fds.push_back(IVY_TRY(listen_on_text(options.torch)));
  return {};
}

// Returns as many whole lines as the supervisor takes at once.
std::string shortened(std::string text) {
  if (text.size() <= kMaxStallBytes) return text;
  text.resize(text.rfind('\n', kMaxStallBytes) == std::string::npos
                  ? kMaxStallBytes
                  : text.rfind('\n', kMaxStallBytes));
  return text + "\nand more";
}

constexpr const char* kComplete = "all ranks of the job that is there have come";

class RendezvousProcess {
 public:
  RendezvousProcess(ServeOptions options, const std::string& token)
      : options_(std::move(options)), server_(loop_, server_options(token)) {}

  Result<void> listen() {
    IVY_CHECK(listen_on_addresses(options_));
    for (const int fd : options_.native_fds) server_.listen(fd, Dialect::kNative);
    for (const int fd : options_.torch_fds) server_.listen(fd, Dialect::kTorch);
    if (options_.control_fd >= 0) return {};
    for (const int fd : options_.native_fds) say("listening on " + address_of(fd));
    for (const int fd : options_.torch_fds) say("listening for torch on " + address_of(fd));
    return {};
  }

  void say(std::string text) {
    if (options_.adopt_fd >= 0) text = "job " + options_.job_id.substr(0, 12) + ": " + text;
    supervisor_.say(std::move(text));
  }

  int run() {
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (!error) loop_.stop();
    });
    count_when_asked();
    supervisor_.on_put(
        [this](std::string key, std::string value) { put(std::move(key), std::move(value)); });
    supervisor_.start();
    if (options_.adopt_fd >= 0) {
      adopted_.assign(options_.adopt_fd);
      wait_for_knock();
      watch_for_rest();
    }
    if (options_.owner_fd >= 0) watch_owner();
    if (options_.stall_seconds > 0) watch_for_stalls();
    if (options_.adopt_fd < 0) say("ready");
    try {
      loop_.run();
    } catch (const std::bad_alloc&) {
      say("end it has used up its memory of " + std::to_string(options_.job_memory_mib) + " MiB");
      std::_Exit(kExitInternal);  // Memory must not be allocated any more.
    }
    server_.stop();
    return 0;
  }

 private:
  void count_when_asked() {
    asked_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      say("log " + std::to_string(server_.engine().requests()) + " requests served");
      count_when_asked();
    });
  }

  ServerOptions server_options(const std::string& token) {
    ServerOptions server;
    server.job_id = options_.job_id;
    server.token = token;
    server.generation = options_.generation;
    server.torch_peers = options_.torch_peers;
    server.limits = server_limits(options_.torch_connections);
    if (options_.job_memory_mib > 0) {
      const std::uint64_t bytes = options_.job_memory_mib << 20;
      server.engine.store_bytes = std::min<std::uint64_t>(server.engine.store_bytes, bytes / 2);
      server.engine.waiting_bytes = std::min<std::uint64_t>(server.engine.waiting_bytes, bytes / 8);
    }
    server.log = [this](const std::string& text) { say("log " + text); };
    return server;
  }

  void begin(std::uint32_t generation) {
    server_.begin_generation(generation);
    supervisor_.acknowledge(generation);
  }

  // Sets a key of the native dialect, as a client of the present generation would.
  void put(std::string key, std::string value) {
    Engine& engine = server_.engine();
    ClientInfo info;
    info.generation = engine.generation();
    info.address = "the supervisor";
    const std::uint64_t now_ns = monotonic_ns();
    const Result<ClientId> client = engine.join(std::move(info), now_ns);
    if (!client.ok()) return say("log " + key + " is not set: " + client.error().message);
    Replies replies;
    engine.apply(*client, 1, Set{std::move(key), std::move(value)}, now_ns, replies);
    engine.leave(*client);
    server_.answer(replies);
  }

  void end_of_control() {
    if (options_.owner_fd < 0) return loop_.stop();
    serve_the_last();
  }

  void watch_owner() {
    owner_.assign(options_.owner_fd);
    owner_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this](const boost::system::error_code&) { serve_the_last(); });
  }

  // Serves the remaining clients until the last one is gone: ranks may still exchange data, such as
  // which rank died. A connection ends with its process, or by keepalive with its host.
  void serve_the_last() {
    server_.stop_listening();
    if (server_.connection_count() == 0) return loop_.stop();
    last_timer_.expires_after(std::chrono::milliseconds(20));
    last_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) serve_the_last();
    });
  }

  // Waits for connections from the server for many jobs (job_process.h), and for its question
  // whether this process can rest.
  void wait_for_knock() {
    adopted_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [this](const boost::system::error_code& error) {
                          if (error || !take_knock()) return loop_.stop();
                          wait_for_knock();
                        });
  }

  // Returns false at the end of the channel.
  bool take_knock() {
    std::array<char, kHelloBytes> bytes;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room.data();
    message.msg_controllen = room.size();
    const ssize_t count = recvmsg(options_.adopt_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    const std::string_view arrived(bytes.data(), static_cast<std::size_t>(count));
    const cmsghdr* head = CMSG_FIRSTHDR(&message);
    if (head != nullptr && head->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
      server_.adopt(Descriptor(fd), arrived);
    } else if (arrived == kRest) {
      if (server_.connection_count() == 0) return false;
      send(options_.adopt_fd, kBusy.data(), kBusy.size(), MSG_NOSIGNAL);
      idle_since_ns_.reset();
    }  // Else no descriptor was left for the connection, and it is closed.
    return true;
  }

  void watch_for_rest() {
    // With 0 seconds it rests almost at once.
    rest_timer_.expires_after(std::chrono::milliseconds(options_.idle_seconds == 0 ? 20 : 1000));
    rest_timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      const std::uint64_t now_ns = monotonic_ns();
      if (server_.connection_count() > 0) {
        idle_since_ns_.reset();
      } else if (!idle_since_ns_) {
        idle_since_ns_ = now_ns;
      } else if (now_ns - *idle_since_ns_ >= options_.idle_seconds * kSecond) {
        send(options_.adopt_fd, kIdle.data(), kIdle.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        idle_since_ns_ = now_ns;
      }
      watch_for_rest();
    });
  }

  // Reports each stall once. A job may compute for hours without the store: it is stalled only if a
  // client has waited for as long, too.
  void watch_for_stalls() {
    stall_timer_.expires_after(std::chrono::seconds(1));
    stall_timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      const std::uint64_t now_ns = monotonic_ns();
      const std::uint64_t limit_ns = options_.stall_seconds * kSecond;
      const std::uint64_t progress_ns = server_.last_progress_ns();
      const std::optional<std::uint64_t> since_ns = server_.engine().longest_wait_since_ns();
      if (!since_ns) said_at_ = 0;
      if (since_ns && now_ns > std::max(progress_ns, *since_ns) + limit_ns &&
          said_at_ != progress_ns) {
        said_at_ = progress_ns;
        say("stall " + shortened(explain(server_.engine().wait_graph(), now_ns)));
      }
      watch_for_stalls();
    });
  }

  ServeOptions options_;
  boost::asio::io_context loop_{1};
  Server server_;
  boost::asio::signal_set signals_{loop_, SIGTERM, SIGINT};
  boost::asio::signal_set asked_{loop_, SIGUSR1};
  SupervisorSocket supervisor_{
      loop_, options_.control_fd, [this](std::uint32_t generation) { begin(generation); },
      [this] { end_of_control(); }, [this] { server_.refuse_joins(kComplete); }};
  boost::asio::posix::stream_descriptor adopted_{loop_};
  boost::asio::posix::stream_descriptor owner_{loop_};
  boost::asio::steady_timer last_timer_{loop_};
  boost::asio::steady_timer stall_timer_{loop_};
  boost::asio::steady_timer rest_timer_{loop_};
  std::optional<std::uint64_t> idle_since_ns_;
  std::uint64_t said_at_ = 0;
};

int complain(const Error& error) {
  std::fprintf(stderr, "ivy-rendezvous: %s\n", error.message.c_str());
  if (!error.fix.empty()) std::fprintf(stderr, "  %s\n", error.fix.c_str());
  return error.code == Code::kInvalidArgument ? kExitUsage : kExitInternal;
}

int serve_many(const ServeOptions& options) {
  const Result<TokenDirectory> tokens = TokenDirectory::open(options.tokens);
  if (!tokens.ok()) return complain(tokens.error());
  const Result<int> listening = listen_on_text(options.listen);
  if (!listening.ok()) return complain(listening.error());
  const auto say = [](const std::string& text) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  };
  JobServerOptions jobs;
  jobs.jobs = options.jobs;
  jobs.connections = options.job_connections;
  jobs.idle_seconds = options.idle_seconds;
  if (options.job_memory_mib > 0) jobs.memory_bytes = options.job_memory_mib << 20;
  jobs.log = [&say](const std::string& text) { say("log " + text); };
  boost::asio::io_context loop{1};
  boost::asio::signal_set signals{loop, SIGTERM, SIGINT};
  signals.async_wait([&loop](const boost::system::error_code& error, int) {
    if (!error) loop.stop();
  });
  JobServer server(loop, *tokens, jobs);
  say("listening on " + address_of(*listening));
  server.listen(*listening);
  say("ready");
  loop.run();
  server.stop();
  return 0;
}

int run_as_leaf(ServeOptions options, const std::string& token) {
  const Result<void> listening = listen_on_addresses(options);
  if (!listening.ok()) return complain(listening.error());
  const Result<int> code = run_leaf(std::move(options), token);
  return code.ok() ? *code : complain(code.error());
}

// Reads the token from a pipe until its other end is closed.
Result<std::string> token_from(Descriptor pipe) {
  const std::optional<std::string> token = read_from(pipe.get(), kMaxTokenText);
  if (!token) return errno_error(Code::kUnavailable, "read the token", errno);
  if (token->empty()) return Error{Code::kInvalidArgument, "the token is empty"};
  return *token;
}

// Forks and exits in the parent. The starter is a user's training script, which must not find an
// unexpected child: it waits for this process alone, and the forked process goes on as an orphan.
Result<void> leave_starter() {
  const pid_t child = fork();
  if (child < 0) return errno_error(Code::kResourceExhausted, "fork", errno);
  if (child > 0) _exit(0);
  return {};
}

// --help, --generate and --version. Nothing: none of them is asked for.
std::optional<int> tell(std::string_view first, std::string_view second) {
  if (first == "--help" || second == "--help") {
    std::fputs(help_text(serve_page(), HelpLength::kAll).c_str(), stdout);
    return 0;
  }
  if (first == "--generate") {
    const std::optional<std::string> text = generated_page(serve_page(), second);
    if (!text) return complain(wrong_option("--generate makes " + std::string(kGeneratedForms)));
    std::fputs(text->c_str(), stdout);
    return 0;
  }
  if (first == "--version" || first == "-V") {
    std::printf("ivy-rendezvous %s\n", std::string(version()).c_str());
    return 0;
  }
  return std::nullopt;
}

}  // namespace

int run_rendezvous(int argc, char** argv) {
  const std::string_view first = argc > 0 ? argv[0] : "";
  const std::string_view second = argc > 1 ? argv[1] : "";
  if (const std::optional<int> told = tell(first, second)) return *told;
  const Result<ServeOptions> options = parse_serve_options(argc, argv);
  if (!options.ok()) return complain(options.error());
  std::signal(SIGPIPE, SIG_IGN);
  // A process that was started through /proc/self/exe is called "exe" otherwise.
  prctl(PR_SET_NAME, "ivy-rendezvous");
  raise_descriptor_limit();
  if (options->owner_fd >= 0) {
    const Result<void> left = leave_starter();
    if (!left.ok()) return complain(left.error());
  }
  if (!options->tokens.empty()) return serve_many(*options);
  const Result<std::string> token = options->token_fd >= 0
                                        ? token_from(Descriptor(options->token_fd))
                                        : read_token(options->token_file, options->adopt_fd >= 0);
  if (!token.ok()) return complain(token.error());
  if (!options->root.empty()) return run_as_leaf(*options, *token);
  RendezvousProcess process(*options, *token);
  const Result<void> listening = process.listen();
  if (!listening.ok()) {
    process.say("end " + listening.error().message);
    return complain(listening.error());
  }
  return process.run();
}

}  // namespace ivy::store
