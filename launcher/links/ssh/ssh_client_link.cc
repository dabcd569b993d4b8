#include "launcher/links/ssh/ssh_client_link.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "launcher/links/ssh/ssh_advice.h"
#include "launcher/links/ssh/ssh_state.h"

namespace ivy {
namespace {

// Time without progress that is allowed from the start of the client to the relay, logging in
// through several jump hosts included.
constexpr std::chrono::seconds kEntryTimeout{90};
// How often it is looked at whether the bundle moves.
constexpr std::chrono::seconds kLook{1};
// After its output ended: how long its exit code and last words are waited for.
constexpr std::chrono::milliseconds kLastWordsTimeout{500};
constexpr std::size_t kErrorKeptBytes = 4096;

bool is_named_ssh(const std::string& program) {
  return program.substr(program.rfind('/') + 1) == "ssh";
}

}  // namespace

std::vector<std::string> ssh_client_command(const Options& options, const Host& host,
                                            const std::string& config_path,
                                            const std::string& remote_command) {
  std::vector<std::string> words = options.ssh_command;
  if (words.empty()) words.emplace_back("ssh");
  const bool is_ssh = is_named_ssh(words.front());
  if (is_ssh) {
    // The user's own options come first, because for ssh the first value of an option wins.
    for (const char* const word :
         {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
          "-o", "ServerAliveCountMax=6", "-o", "ForwardX11=no", "-o", "ForwardAgent=no", "-o",
          "ClearAllForwardings=yes"}) {
      words.emplace_back(word);
    }
    if (!config_path.empty()) {
      words.emplace_back("-F");
      words.push_back(config_path);
    }
  }
  const std::uint16_t port = host.port != 0 ? host.port : options.ssh_port;
  if (port != 0) {
    words.emplace_back("-p");
    words.push_back(std::to_string(port));
  }
  if (!host.user.empty()) {
    words.emplace_back("-l");
    words.push_back(host.user);
  }
  words.insert(words.end(), options.ssh_args.begin(), options.ssh_args.end());
  if (is_ssh) words.emplace_back("--");
  words.push_back(host.name);
  words.push_back(remote_command);
  return words;
}

SshClientLink::SshClientLink(std::shared_ptr<CarrierContext> context, Host host, SshTarget target,
                             Handlers handlers)
    : context_(std::move(context)),
      host_(std::move(host)),
      target_(std::move(target)),
      handlers_(std::move(handlers)),
      timer_(context_->loop()) {}

SshClientLink::~SshClientLink() { close(); }

void SshClientLink::open(const OpenRequest& request) {
  request_ = request;
  const Result<NodeUpload*> upload = SshState::of(*context_).upload();
  if (!upload.ok()) {
    const LinkDown down = LinkDown::from(LinkFailure::kBootstrap, upload.error());
    boost::asio::post(context_->loop(), [this, down, alive = alive_] {
      if (*alive) fail(down);
    });
    return;
  }
  up_.carrier = Carrier::kSshClient;
  up_.remote_command = (*upload)->remote_command();
  want_place(**upload);
}

void SshClientLink::want_place(NodeUpload& upload) {
  context_->handshakes().acquire(alive_, [this, alive = alive_, &upload](Slots::Ticket place) {
    if (!*alive) return;
    place_ = std::move(place);
    handlers_.progress("ssh client: connecting");
    if (!*alive) return;
    lookup_ = std::make_shared<PeerLookup>(context_->loop());
    lookup_->start(context_->resolvers(), target_.host_name,
                   [this, &upload](const PeerAddresses& addresses) {
                     up_.peer_address = addresses.peer;
                     up_.local_address = addresses.local;
                     start(upload);
                   });
  });
}

void SshClientLink::start(NodeUpload& upload) {
  entry_.emplace(upload, request_, host_.name);
  const std::vector<std::string> command =
      ssh_client_command(context_->options(), host_, SshState::of(*context_).config().override_path,
                         upload.remote_command());
  if (const Result<void> started = start_child(command); !started) {
    return fail(LinkDown{LinkFailure::kBootstrap, started.error().message,
                         "install the OpenSSH client, or name yours with --ssh-command"});
  }
  start_pumps();
  moved_at_ = std::chrono::steady_clock::now();
  watch_entry();
}

Result<void> SshClientLink::start_child(const std::vector<std::string>& command) {
  Pipe input, output, error;
  if (!input.open() || !output.open() || !error.open()) {
    return errno_error(Code::kResourceExhausted, "pipes for the ssh client", errno);
  }
  ChildRequest request;
  request.arguments = command;
  request.stdin_fd = input.read_end();
  request.stdout_fd = output.write_end();
  request.stderr_fd = error.write_end();
  child_ = IVY_TRY(ChildProcess::start(context_->loop(), request));
  pump_ =
      std::make_shared<DescriptorPump>(context_->loop(), output.take_read(), input.take_write());
  error_pump_ = std::make_shared<DescriptorPump>(context_->loop(), error.take_read(), -1);
  return {};
}

void SshClientLink::start_pumps() {
  DescriptorPump::Handlers output;
  output.bytes = [this](std::string_view bytes) { take(bytes); };
  output.drained = [this] {
    if (std::exchange(owes_drained_, false)) handlers_.drained();
  };
  output.ended = [this](const std::string&) { output_ended(); };
  pump_->start(std::move(output));
  DescriptorPump::Handlers errors;
  errors.bytes = [this](std::string_view bytes) {
    error_text_.append(bytes);
    if (error_text_.size() > kErrorKeptBytes) {
      error_text_.erase(0, error_text_.size() - kErrorKeptBytes);
    }
  };
  errors.ended = [](const std::string&) {};
  error_pump_->start(std::move(errors));
}

void SshClientLink::take(std::string_view bytes) {
  if (!entry_->is_past()) return enter(bytes);
  handlers_.bytes(bytes);
}

void SshClientLink::enter(std::string_view bytes) {
  const std::shared_ptr<bool> alive = alive_;
  moved_at_ = std::chrono::steady_clock::now();
  const RemoteEntry::Step step = entry_->feed(bytes);
  if (!step.progress.empty()) handlers_.progress(step.progress);
  if (!*alive) return;
  if (!step.send.empty()) pump_->write(step.send);
  if (step.up) {
    place_.reset();
    timer_.cancel();
    handlers_.up(up_);
  }
  if (*alive && !step.bytes.empty()) handlers_.bytes(step.bytes);
  if (*alive && step.failed) fail(*step.failed);
}

void SshClientLink::output_ended() {
  // Its exit code and last words may be a moment behind the end of its output.
  const std::shared_ptr<bool> alive = alive_;
  timer_.expires_after(kLastWordsTimeout);
  timer_.async_wait([this, alive](const boost::system::error_code& error) {
    if (!error && *alive) report_end();
  });
  if (child_->ended()) return report_end();
  child_->on_end([this, alive](const ExitStatus&) {
    if (*alive) report_end();
  });
}

void SshClientLink::report_end() {
  timer_.cancel();
  child_->on_end({});
  // One more turn of the loop reads what the client wrote before it ended.
  boost::asio::post(context_->loop(), [this, alive = alive_] {
    if (*alive) fail(end_reason());
  });
}

LinkDown SshClientLink::end_reason() {
  const bool was_up = entry_->is_up();
  LinkDown down;
  const std::string said = telling_line(error_text_);
  const std::string noise = last_line(entry_->noise());
  down.failure = was_up ? LinkFailure::kBroken : classify_client_failure(error_text_);
  if (!was_up && down.failure == LinkFailure::kBroken) down.failure = LinkFailure::kBootstrap;
  down.message =
      was_up ? "the ssh client's connection ended" : "the ssh client could not get through";
  if (!said.empty() || !noise.empty()) down.message += ": " + (said.empty() ? noise : said);
  if (const auto& status = child_->ended(); status && !status->success()) {
    down.message += " (" + describe(*status) + ")";
  }
  if (!was_up) down.fix = fix();
  return down;
}

void SshClientLink::watch_entry() {
  timer_.expires_after(kLook);
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (error || !*alive) return;
    const std::size_t unwritten = pump_->unwritten();
    if (unwritten != std::exchange(unwritten_, unwritten))
      moved_at_ = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::now() - moved_at_ >= kEntryTimeout) {
      child_->signal(SIGTERM);
      return fail(
          LinkDown{LinkFailure::kUnreachable, "the ssh client did not get on for 90 s", fix()});
    }
    const std::string moved = entry_->sending(unwritten);
    if (!moved.empty()) handlers_.progress(moved);
    if (*alive) watch_entry();
  });
}

std::string SshClientLink::fix() const {
  return ssh_true(host_, host_.port != 0 ? host_.port : context_->options().ssh_port,
                  SshState::of(*context_).config().override_path, AskChoice::kNeverAsk);
}

void SshClientLink::write(std::string bytes) {
  owes_drained_ = true;
  pump_->write(bytes);
}

void SshClientLink::close() {
  if (!*alive_) return;
  *alive_ = false;
  timer_.cancel();
  place_.reset();
  if (lookup_) lookup_->cancel();
  if (pump_) pump_->stop();
  if (error_pump_) error_pump_->stop();
  if (child_) child_->end_within(context_->loop());
}

void SshClientLink::fail(const LinkDown& down) {
  const auto report = handlers_.down;
  close();
  report(down);
}

}  // namespace ivy
