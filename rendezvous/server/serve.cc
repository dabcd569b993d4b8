#include "rendezvous/server/serve.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <charconv>
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
#include <vector>

#include "proto/contract/build.h"
#include "proto/contract/exit_code.h"
#include "proto/os/listening_socket.h"
#include "proto/wire/handshake.h"
#include "rendezvous/server/job_process.h"
#include "rendezvous/server/job_server.h"
#include "rendezvous/server/leaf_serve.h"
#include "rendezvous/server/server.h"
#include "rendezvous/server/supervisor_socket.h"
#include "rendezvous/server/token_directory.h"

namespace ivy::store {
namespace {

constexpr std::size_t kMaxStallBytes = 32u << 10;
// A token is 64 digits; the parser refuses a longer text.
constexpr std::size_t kMaxTokenText = 256;

struct ServeOptions {
  std::string job_id;
  std::string token_file;
  int token_fd = -1;
  int owner_fd = -1;  // A pidfd.
  std::uint32_t generation = 0;
  int control_fd = -1;
  std::vector<int> native_fds;
  std::vector<int> torch_fds;
  std::vector<std::string> torch_peers;
  std::size_t torch_connections = 0;  // 0: the server's own limits.
  std::string root;                   // ADDRESS:PORT of the store; set: this is a leaf.
  std::string listen;                 // ADDRESS:PORT
  std::string torch;
  unsigned stall_seconds = 0;
  std::string wal;  // Directory.
  // Options of the server for many jobs and of one job's process behind it:
  std::string tokens;  // Directory.
  JobServerOptions jobs;
  std::uint64_t job_memory_mib = 0;  // 0: no limit.
  int adopt_fd = -1;
};

constexpr const char* kHelp =
    "usage: ivy-rendezvous serve --job HEX32 --token-file FILE --listen ADDRESS:PORT [options]\n"
    "       ivy-rendezvous serve --tokens DIR --listen ADDRESS:PORT [options]\n"
    "or:    ivy-rendezvous leaf --root ADDRESS:PORT and the options of one job\n"
    "or:    ivy-rendezvous --version\n"
    "\n"
    "A store for one job, or for all jobs that have a token file in DIR (named by the job's id,\n"
    "32 bytes, mode 0400; a file that appears is served at once, a job whose file goes is over).\n"
    "\n"
    "  --listen ADDRESS:PORT      numeric; port 0: any\n"
    "  --wal DIR                  keep what was acknowledged in DIR/JOB.wal: it outlives kill -9.\n"
    "                             Without it a store that ends has lost everything, and its\n"
    "                             clients are told so (EpochLost)\n"
    "for one job:\n"
    "  --torch ADDRESS:PORT       serve PyTorch's TCPStore there; it knows no token\n"
    "  --torch-peers A,B          numeric addresses that may, besides loopback\n"
    "  --torch-connections N      of its clients together (default 16384)\n"
    "  --generation N             the attempt that is served (default 0)\n"
    "  --stall-seconds N          say who waits for whom when nothing has moved for so long\n"
    "for many jobs:\n"
    "  --max-jobs N               at a time (default 256)\n"
    "  --job-memory MIB           of each (default 256); half of it for keys and values\n"
    "  --job-connections N        of each (default 4096)\n"
    "  --idle-seconds N           without a connection, until a job's memory is freed (default "
    "600)\n";

Error wrong(std::string what) {
  return Error{Code::kInvalidArgument, std::move(what), "ivy-rendezvous --help shows the options"};
}

template <class Number>
Result<void> take_number(std::string_view name, std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return wrong(std::string(name) + " " + std::string(text) + ": a number is needed");
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

Result<void> take_descriptor(std::string_view name, std::string_view text,
                             std::vector<int>& descriptors) {
  int fd = -1;
  IVY_CHECK(take_number(name, text, fd));
  descriptors.push_back(fd);
  return {};
}

Result<void> take_option(std::string_view name, std::string_view value, ServeOptions& options) {
  if (name == "--job")
    options.job_id = value;
  else if (name == "--token-file")
    options.token_file = value;
  else if (name == "--listen")
    options.listen = value;
  else if (name == "--torch")
    options.torch = value;
  else if (name == "--torch-peers")
    options.torch_peers = split_at_commas(value);
  else if (name == "--torch-connections")
    return take_number(name, value, options.torch_connections);
  else if (name == "--tokens")
    options.tokens = value;
  else if (name == "--max-jobs")
    return take_number(name, value, options.jobs.jobs);
  else if (name == "--job-memory")
    return take_number(name, value, options.job_memory_mib);
  else if (name == "--job-connections")
    return take_number(name, value, options.jobs.connections);
  else if (name == "--idle-seconds")
    return take_number(name, value, options.jobs.idle_seconds);
  else if (name == "--adopt-fd")
    return take_number(name, value, options.adopt_fd);
  else if (name == "--token-fd")
    return take_number(name, value, options.token_fd);
  else if (name == "--owner-fd")
    return take_number(name, value, options.owner_fd);
  else if (name == "--wal")
    options.wal = value;
  else if (name == "--root")
    options.root = value;
  else if (name == "--generation")
    return take_number(name, value, options.generation);
  else if (name == "--control-fd")
    return take_number(name, value, options.control_fd);
  else if (name == "--native-fd")
    return take_descriptor(name, value, options.native_fds);
  else if (name == "--torch-fd")
    return take_descriptor(name, value, options.torch_fds);
  else if (name == "--stall-seconds")
    return take_number(name, value, options.stall_seconds);
  else
    return wrong("unknown option " + std::string(name));
  return {};
}

Result<ServeOptions> parse(int argc, char** argv) {
  ServeOptions options;
  const std::string_view verb = argc < 1 ? "" : argv[0];
  if (verb != "serve" && verb != "leaf") return wrong("the verbs are serve and leaf");
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return wrong(std::string(argv[i]) + " needs a value");
    IVY_CHECK(take_option(argv[i], argv[i + 1], options));
  }
  if (!options.tokens.empty()) {
    if (options.listen.empty()) return wrong("--listen is missing");
    if (!options.job_id.empty() || !options.token_file.empty() || !options.torch.empty())
      return wrong("--tokens names the jobs: no --job, --token-file or --torch beside it");
    return options;
  }
  const bool is_hex = options.job_id.size() == 32 &&
                      options.job_id.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex) return wrong("--job needs 32 hexadecimal digits");
  if (options.token_file.empty() && options.token_fd < 0) return wrong("--token-file is missing");
  if (options.listen.empty() && options.native_fds.empty() && options.adopt_fd < 0)
    return wrong("--listen is missing");
  if ((verb == "leaf") == options.root.empty())
    return wrong("--root, the store's address, belongs to leaf");
  return options;
}

// "10.0.0.1:4123" or "[::]:0".
Result<int> listen_on_text(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  std::uint16_t port = 0;
  if (colon == std::string_view::npos) return wrong(std::string(text) + ": ADDRESS:PORT is needed");
  IVY_CHECK(take_number("port of", text.substr(colon + 1), port));
  std::string_view address = text.substr(0, colon);
  if (address.starts_with('[') && address.ends_with(']'))
    address = address.substr(1, address.size() - 2);
  return listen_tcp(std::string(address), port);
}

// Returns as many whole lines as the supervisor takes at once.
std::string shortened(std::string text) {
  if (text.size() <= kMaxStallBytes) return text;
  text.resize(text.rfind('\n', kMaxStallBytes) == std::string::npos
                  ? kMaxStallBytes
                  : text.rfind('\n', kMaxStallBytes));
  return text + "\nand more";
}

// torch's clients leave at least half of the descriptors to those that have proved themselves.
ServerLimits server_limits(std::size_t torch_connections) {
  ServerLimits limits;
  rlimit descriptors{};
  if (torch_connections != 0) {
    limits.torch_connections = torch_connections;
    limits.torch_bytes = torch_bytes_for(torch_connections);
  }
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    limits.torch_connections =
        std::min<std::size_t>(limits.torch_connections, descriptors.rlim_cur / 2);
  }
  return limits;
}

constexpr const char* kComplete = "all ranks of the job that is there have come";

class RendezvousProcess {
 public:
  RendezvousProcess(ServeOptions options, const std::string& token)
      : options_(std::move(options)), server_(loop_, server_options(token)) {}

  Result<void> listen() {
    if (!options_.wal.empty()) IVY_CHECK(server_.keep_in(options_.wal));
    std::vector<int> native = options_.native_fds;
    std::vector<int> torch = options_.torch_fds;
    if (!options_.listen.empty()) native.push_back(IVY_TRY(listen_on_text(options_.listen)));
    if (!options_.torch.empty()) torch.push_back(IVY_TRY(listen_on_text(options_.torch)));
    for (const int fd : native) server_.listen(fd, Server::Dialect::kNative);
    for (const int fd : torch) server_.listen(fd, Server::Dialect::kTorch);
    if (options_.control_fd >= 0) return {};
    for (const int fd : native) say("listening on " + address_of(fd));
    for (const int fd : torch) say("listening for torch on " + address_of(fd));
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
    return exit_code_;
  }

 private:
  void count_when_asked() {
    asked_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      say("log " + std::to_string(server_.request_count()) + " requests served");
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
    server.log_lost = [this](const std::string& text) {
      say("end " + text);
      exit_code_ = kExitInternal;
      loop_.stop();
    };
    return server;
  }

  void begin(std::uint32_t generation) {
    server_.begin_generation(generation);
    supervisor_.acknowledge(generation);
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
      server_.adopt(fd, arrived);
    } else if (arrived == kRest) {
      if (server_.connection_count() == 0) return false;
      send(options_.adopt_fd, kBusy.data(), kBusy.size(), MSG_NOSIGNAL);
      idle_since_.reset();
    }  // Else no descriptor was left for the connection, and it is closed.
    return true;
  }

  void watch_for_rest() {
    // With 0 seconds it rests almost at once.
    rest_timer_.expires_after(
        std::chrono::milliseconds(options_.jobs.idle_seconds == 0 ? 20 : 1000));
    rest_timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      const auto now = std::chrono::steady_clock::now();
      if (server_.connection_count() > 0) {
        idle_since_.reset();
      } else if (!idle_since_) {
        idle_since_ = now;
      } else if (now - *idle_since_ >= std::chrono::seconds(options_.jobs.idle_seconds)) {
        send(options_.adopt_fd, kIdle.data(), kIdle.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        idle_since_ = now;
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
      const auto now = static_cast<std::uint64_t>(
          std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
      const std::uint64_t limit = options_.stall_seconds * std::uint64_t{1'000'000'000};
      const std::uint64_t progress = server_.last_progress_ns();
      if (!server_.anybody_waits()) said_at_ = 0;
      if (server_.anybody_waits() && now > progress + limit && said_at_ != progress) {
        const std::uint64_t since = server_.longest_wait_since_ns().value_or(now);
        if (now > since + limit) {
          said_at_ = progress;
          say("stall " + shortened(server_.why()));
        }
      }
      watch_for_stalls();
    });
  }

  const ServeOptions options_;
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
  std::optional<std::chrono::steady_clock::time_point> idle_since_;
  std::uint64_t said_at_ = 0;
  int exit_code_ = 0;
};

int complain(const Error& error) {
  std::fprintf(stderr, "ivy-rendezvous: %s\n", error.message.c_str());
  if (!error.fix.empty()) std::fprintf(stderr, "  %s\n", error.fix.c_str());
  return error.code == Code::kInvalidArgument ? kExitUsage : kExitInternal;
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
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
  JobServerOptions jobs = options.jobs;
  jobs.wal = options.wal;
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

int run_as_leaf(const ServeOptions& options, const std::string& token) {
  LeafStart start;
  start.job_id = options.job_id;
  start.token = token;
  start.generation = options.generation;
  start.root = options.root;
  start.control_fd = options.control_fd;
  start.native_fds = options.native_fds;
  start.torch_fds = options.torch_fds;
  start.limits = server_limits(options.torch_connections);
  for (const auto& [text, fds] : {std::pair(&options.listen, &start.native_fds),
                                  std::pair(&options.torch, &start.torch_fds)}) {
    if (text->empty()) continue;
    const Result<int> fd = listen_on_text(*text);
    if (!fd.ok()) return complain(fd.error());
    fds->push_back(*fd);
  }
  const Result<int> code = run_leaf(std::move(start));
  return code.ok() ? *code : complain(code.error());
}

// Reads the token from a pipe until its other end is closed.
Result<std::string> token_from(int descriptor) {
  std::array<char, kMaxTokenText> bytes{};
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t count = read(descriptor, bytes.data() + have, bytes.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_error(Code::kUnavailable, "read the token", errno);
    if (count == 0) break;
    have += static_cast<std::size_t>(count);
  }
  close(descriptor);
  if (have == 0) return Error{Code::kInvalidArgument, "the token is empty"};
  return std::string(bytes.data(), have);
}

// Forks and exits in the parent. The starter is a user's training script, which must not find an
// unexpected child: it waits for this process alone, and the forked process goes on as an orphan.
Result<void> leave_starter() {
  const pid_t child = fork();
  if (child < 0) return errno_error(Code::kResourceExhausted, "fork", errno);
  if (child > 0) _exit(0);
  return {};
}

}  // namespace

int run_rendezvous(int argc, char** argv) {
  const std::string_view first = argc > 0 ? argv[0] : "";
  const std::string_view second = argc > 1 ? argv[1] : "";
  if (first == "--help" || second == "--help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (first == "--version" || first == "-V") {
    std::printf("ivy-rendezvous %s\n", std::string(version()).c_str());
    return 0;
  }
  const Result<ServeOptions> options = parse(argc, argv);
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
                                        ? token_from(options->token_fd)
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
