// SPDX-License-Identifier: Apache-2.0
// run_rendezvous() parses the arguments, leaves the starter's process if it serves in the
// background, and runs RendezvousProcess, which connects a Server (server.h), the control
// descriptor and the clock: run() is its main loop, the other members react to the lines that
// arrive.
#include "rendezvous/server/serve.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/build.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/argument_file.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/listening_socket.h"
#include "proto/os/process.h"
#include "proto/pages/completions.h"
#include "proto/wire/handshake.h"
#include "rendezvous/client/token_file.h"
#include "rendezvous/engine/explanation.h"
#include "rendezvous/server/serve_options.h"
#include "rendezvous/server/server.h"
#include "rendezvous/server/supervisor_socket.h"

namespace ivy::store {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::size_t kMaxStallBytes = 32u << 10;
// libivycomm passes longer tokens than ivyrun: the content of a user's file, limited to this.
constexpr std::size_t kMaxTokenText = 4096;

// Listens on an address from the command line, such as "10.0.0.1:4123" or "[::]:0".
Result<int> listen_on_text(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::optional<std::uint16_t> port =
      colon != std::string::npos ? to_number<std::uint16_t>(text.substr(colon + 1)) : std::nullopt;
  if (!port) return wrong_option(text + ": write ADDRESS:PORT");
  return listen_tcp(host_of(text), *port);
}

// Listens on the addresses in the options and adds the sockets to the inherited ones.
Result<void> listen_on_addresses(ServeOptions& options) {
  if (!options.listen.empty())
    options.native_fds.push_back(IVY_TRY(listen_on_text(options.listen)));
  if (!options.torch.empty()) options.torch_fds.push_back(IVY_TRY(listen_on_text(options.torch)));
  return {};
}

// Returns as many whole lines as the supervisor accepts in one message.
std::string shortened(std::string text) {
  if (text.size() <= kMaxStallBytes) return text;
  text.resize(text.rfind('\n', kMaxStallBytes) == std::string::npos
                  ? kMaxStallBytes
                  : text.rfind('\n', kMaxStallBytes));
  return text + "\nand more";
}

constexpr const char* kComplete = "all ranks of the job at this address have already joined";

class RendezvousProcess final : private SupervisorOrders {
 public:
  RendezvousProcess(ServeOptions options, const std::string& token)
      : options_(std::move(options)), server_(loop_, server_options(token)) {}

  Result<void> listen() {
    IVY_CHECK(listen_on_addresses(options_));
    for (const int fd : options_.native_fds) server_.listen(fd, Dialect::kNative);
    for (const int fd : options_.torch_fds) server_.listen(fd, Dialect::kTorch);
    if (options_.control_fd >= 0) return {};
    for (const int fd : options_.native_fds) send_line("listening on " + address_of(fd));
    for (const int fd : options_.torch_fds) send_line("listening for torch on " + address_of(fd));
    return {};
  }

  void send_line(std::string text) { supervisor_.send_line(std::move(text)); }

  int run() {
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (!error) loop_.stop();
    });
    report_count_on_signal();
    supervisor_.start();
    if (options_.owner_fd >= 0) watch_owner();
    if (options_.stall_seconds > 0) watch_for_stalls();
    send_line("ready");
    try {
      loop_.run();
    } catch (const std::bad_alloc&) {
      send_line("end it has run out of memory (ulimit -v, or the memory limit of its cgroup)");
      std::_Exit(kExitInternal);  // No memory can be allocated here.
    }
    server_.stop();
    return 0;
  }

 private:
  void report_count_on_signal() {
    count_signal_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      send_line("log " + std::to_string(server_.engine().requests()) + " requests served");
      report_count_on_signal();
    });
  }

  ServerOptions server_options(const std::string& token) {
    ServerOptions server;
    server.job_id = options_.job_id;
    server.token = token;
    server.generation = options_.generation;
    server.torch_peers = options_.torch_peers;
    server.limits = server_limits(options_.torch_connections);
    server.log = [this](const std::string& text) { send_line("log " + text); };
    return server;
  }

  // SupervisorOrders
  void begin_generation(std::uint32_t generation) override {
    server_.begin_generation(generation);
    supervisor_.acknowledge(generation);
  }

  // Sets a key of the native dialect, as a client of the current generation would.
  void put(std::string key, std::string value) override {
    Engine& engine = server_.engine();
    ClientInfo info;
    info.generation = engine.generation();
    info.address = "the supervisor";
    const std::uint64_t now_ns = monotonic_ns();
    const Result<ClientId> client = engine.join(std::move(info), now_ns);
    if (!client.ok()) return send_line("log " + key + " is not set: " + client.error().message);
    Replies replies;
    engine.apply(*client, 1, Set{std::move(key), std::move(value)}, now_ns, replies);
    engine.leave(*client);
    server_.answer(replies);
  }

  void add_peer(std::string address) override { server_.admit_torch(std::move(address)); }
  void all_joined() override { server_.reject_joins(kComplete); }

  void orders_ended() override {
    if (options_.owner_fd < 0) return loop_.stop();
    serve_the_last();
  }

  void watch_owner() {
    owner_.assign(options_.owner_fd);
    owner_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this](const boost::system::error_code&) { serve_the_last(); });
  }

  // Serves the remaining clients until the last connection closes: ranks may still exchange data,
  // such as which rank died. A connection closes with its process or, if its host fails, by
  // keepalive.
  void serve_the_last() {
    server_.stop_listening();
    if (server_.connection_count() == 0) return loop_.stop();
    last_timer_.expires_after(std::chrono::milliseconds(20));
    last_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) serve_the_last();
    });
  }

  // Reports each stall once. A job may compute for hours without using the store, so it is stalled
  // only if a client has also waited that long.
  void watch_for_stalls() {
    stall_timer_.expires_after(std::chrono::seconds(1));
    stall_timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      const std::uint64_t now_ns = monotonic_ns();
      const std::uint64_t limit_ns = options_.stall_seconds * kSecond;
      const std::uint64_t progress_ns = server_.last_progress_ns();
      const std::optional<std::uint64_t> since_ns = server_.engine().longest_wait_since_ns();
      if (!since_ns) stall_reported_at_ = 0;
      if (since_ns && now_ns > std::max(progress_ns, *since_ns) + limit_ns &&
          stall_reported_at_ != progress_ns) {
        stall_reported_at_ = progress_ns;
        send_line("stall " + shortened(explain(server_.engine().wait_graph(), now_ns)));
      }
      watch_for_stalls();
    });
  }

  ServeOptions options_;
  boost::asio::io_context loop_{1};
  Server server_;
  boost::asio::signal_set signals_{loop_, SIGTERM, SIGINT};
  boost::asio::signal_set count_signal_{loop_, SIGUSR1};
  SupervisorSocket supervisor_{loop_, options_.control_fd, *this};
  boost::asio::posix::stream_descriptor owner_{loop_};
  boost::asio::steady_timer last_timer_{loop_};
  boost::asio::steady_timer stall_timer_{loop_};
  std::uint64_t stall_reported_at_ = 0;
};

int complain(const Error& error) {
  std::fprintf(stderr, "ivy-rendezvous: %s\n", error.message.c_str());
  if (!error.fix.empty()) std::fprintf(stderr, "  %s\n", error.fix.c_str());
  return error.code == Code::kInvalidArgument ? kExitUsage : kExitInternal;
}

// Reads the token from a pipe until the other end is closed.
Result<std::string> token_from(Descriptor pipe) {
  const std::optional<std::string> token = read_from(pipe.get(), kMaxTokenText);
  if (!token) return errno_error(Code::kUnavailable, "read the token", errno);
  if (token->empty()) return Error{Code::kInvalidArgument, "the token is empty"};
  return *token;
}

// Forks and exits in the parent, so that the forked process continues as an orphan. The starter is
// a user's training script, which must not find an unexpected child; it waits only for the parent.
Result<void> leave_starter() {
  const pid_t child = fork();
  if (child < 0) return errno_error(Code::kResourceExhausted, "fork", errno);
  if (child > 0) _exit(0);
  return {};
}

// Handles --help, --generate and --version. Returns nothing if none of them was given.
std::optional<int> print_information(std::string_view first, std::string_view second) {
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
  if (first == "--complete") {
    std::vector<std::string> words(argv + 1, argv + argc);
    std::puts(completions(serve_page(), words).c_str());
    return 0;
  }
  if (const std::optional<int> exit_code = print_information(first, second)) return *exit_code;
  const Result<std::vector<std::string>> words = with_argument_file(argc, argv);
  if (!words.ok()) return complain(words.error());
  const Result<ServeOptions> options = parse_serve_options(*words);
  if (!options.ok()) return complain(options.error());
  std::signal(SIGPIPE, SIG_IGN);
  // A process that was started through /proc/self/exe would otherwise be called "exe".
  prctl(PR_SET_NAME, "ivy-rendezvous");
  raise_descriptor_limit();
  if (options->owner_fd >= 0) {
    const Result<void> left = leave_starter();
    if (!left.ok()) return complain(left.error());
  }
  const Result<std::string> token = options->token_fd >= 0
                                        ? token_from(Descriptor(options->token_fd))
                                        : read_token(options->token_file);
  if (!token.ok()) return complain(token.error());
  RendezvousProcess process(*options, *token);
  const Result<void> listening = process.listen();
  if (!listening.ok()) {
    process.send_line("end " + listening.error().message);
    return complain(listening.error());
  }
  return process.run();
}

}  // namespace ivy::store
