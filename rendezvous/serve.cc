#include "rendezvous/serve.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/exit_code.h"
#include "proto/handshake.h"
#include "proto/listening_socket.h"
#include "rendezvous/server.h"

namespace ivy::store {
namespace {

constexpr std::size_t kTokenBytes = 32;
constexpr std::size_t kMaxControlLine = 4096;
constexpr std::size_t kMaxStallBytes = 32u << 10;

struct ServeOptions {
  std::string job_id;
  std::string token_file;
  std::uint32_t generation = 0;
  int control_fd = -1;
  std::vector<int> native_fds;
  std::vector<int> torch_fds;
  std::vector<std::string> torch_peers;
  std::string listen;  // ADDRESS:PORT
  std::string torch;
  unsigned stall_seconds = 0;
};

Error wrong(std::string what) {
  return Error{Code::kInvalidArgument, std::move(what),
               "usage: ivy-rendezvous serve --job HEX32 --token-file PATH --listen ADDRESS:PORT "
               "[--torch ADDRESS:PORT [--torch-peers A,B...]] [--stall-seconds N]"};
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
  if (argc < 1 || std::string_view(argv[0]) != "serve") return wrong("the only verb is serve");
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return wrong(std::string(argv[i]) + " needs a value");
    IVY_CHECK(take_option(argv[i], argv[i + 1], options));
  }
  const bool is_hex = options.job_id.size() == 32 &&
                      options.job_id.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex) return wrong("--job needs 32 hexadecimal digits");
  if (options.token_file.empty()) return wrong("--token-file is missing");
  if (options.listen.empty() && options.native_fds.empty()) return wrong("--listen is missing");
  return options;
}

Result<std::string> read_token(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return errno_error(Code::kNotFound, "token file " + path, errno);
  std::array<char, kTokenBytes + 1> bytes{};
  const ssize_t count = read(fd, bytes.data(), bytes.size());
  close(fd);
  if (count != static_cast<ssize_t>(kTokenBytes)) {
    return Error{Code::kInvalidArgument,
                 "token file " + path + " must hold " + std::to_string(kTokenBytes) + " bytes"};
  }
  return std::string(bytes.data(), kTokenBytes);
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

// Whole lines, as many as the supervisor takes at once.
std::string shortened(std::string text) {
  if (text.size() <= kMaxStallBytes) return text;
  text.resize(text.rfind('\n', kMaxStallBytes) == std::string::npos
                  ? kMaxStallBytes
                  : text.rfind('\n', kMaxStallBytes));
  return text + "\nand more";
}

class RendezvousProcess {
 public:
  RendezvousProcess(ServeOptions options, const std::string& token)
      : options_(std::move(options)), server_(loop_, server_options(token)) {}

  Result<void> listen() {
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

  int run() {
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (!error) loop_.stop();
    });
    if (options_.control_fd >= 0) {
      control_.assign(options_.control_fd);
      wait_for_control();
    }
    if (options_.stall_seconds > 0) watch_for_stalls();
    say("ready");
    loop_.run();
    server_.stop();
    return 0;
  }

 private:
  ServerOptions server_options(const std::string& token) {
    ServerOptions server;
    server.job_id = options_.job_id;
    server.token = token;
    server.generation = options_.generation;
    server.torch_peers = options_.torch_peers;
    server.log = [this](const std::string& text) { say("log " + text); };
    return server;
  }

  // A control socket that is full loses the line: the store must not wait for its reader.
  void say(std::string text) {
    for (char& c : text) {
      if (c == '\n') c = '\v';
    }
    text.push_back('\n');
    if (options_.control_fd < 0) {
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);
    } else {
      send(options_.control_fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  void wait_for_control() {
    control_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [this](const boost::system::error_code& error) {
                          if (error || !read_control()) return loop_.stop();
                          wait_for_control();
                        });
  }

  // False at its end.
  bool read_control() {
    std::array<char, kMaxControlLine> bytes{};
    const ssize_t count = recv(options_.control_fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    line_.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = line_.find('\n'); end != std::string::npos; end = line_.find('\n')) {
      const std::string line = line_.substr(0, end);
      line_.erase(0, end + 1);
      if (!obey(line)) return false;
    }
    return line_.size() <= kMaxControlLine;
  }

  bool obey(std::string_view line) {
    constexpr std::string_view kGeneration = "generation ";
    if (!line.starts_with(kGeneration)) return line != "quit";
    std::uint32_t generation = 0;
    if (take_number("generation", line.substr(kGeneration.size()), generation).ok())
      server_.begin_generation(generation);
    return true;
  }

  // Said once per stall. A job may compute for hours without the store: it is stalled only when
  // somebody has waited for as long, too.
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
  boost::asio::posix::stream_descriptor control_{loop_};
  boost::asio::steady_timer stall_timer_{loop_};
  std::string line_;
  std::uint64_t said_at_ = 0;
};

int complain(const Error& error) {
  std::fprintf(stderr, "ivy-rendezvous: %s\n", error.message.c_str());
  if (!error.fix.empty()) std::fprintf(stderr, "  %s\n", error.fix.c_str());
  return error.code == Code::kInvalidArgument ? kExitUsage : kExitInternal;
}

}  // namespace

int run_rendezvous(int argc, char** argv) {
  const Result<ServeOptions> options = parse(argc, argv);
  if (!options.ok()) return complain(options.error());
  const Result<std::string> token = read_token(options->token_file);
  if (!token.ok()) return complain(token.error());
  std::signal(SIGPIPE, SIG_IGN);
  // A process that was started through /proc/self/exe is called "exe" otherwise.
  prctl(PR_SET_NAME, "ivy-rendezvous");
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  RendezvousProcess process(*options, *token);
  const Result<void> listening = process.listen();
  if (!listening.ok()) return complain(listening.error());
  return process.run();
}

}  // namespace ivy::store
