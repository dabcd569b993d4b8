// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_state.h"

#include <glob.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "launcher/links/ssh/ssh_agent.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Time limit of `ssh -G`, which may wait for a name server (CanonicalizeHostname): longer than a
// name server takes to fail.
constexpr std::chrono::seconds kAnswerTimeout{10};
// Time limit for an agent to list its keys. It may ask its user to unlock it.
constexpr std::chrono::milliseconds kAgentLimit{10'000};
// The same on a redial: shorter, because a supervisor waits for its launcher for a limited time.
constexpr std::chrono::milliseconds kAgentLimitRedial{3'000};
constexpr const char* kUnanswered = "settings that ssh -G did not print";
// A larger file was not written by a person, and is not read.
constexpr std::size_t kMaxFileBytes = 64u << 20;

bool finds_no_file(const std::string& pattern) {
  glob_t found{};
  const bool is_nothing =
      pattern.starts_with('/') && glob(pattern.c_str(), 0, nullptr, &found) == GLOB_NOMATCH;
  globfree(&found);
  return is_nothing;
}

// Returns this process's account; in a container the uid may have none.
SshUser current_user() {
  SshUser user;
  if (const passwd* entry = getpwuid(getuid()); entry != nullptr) {
    user.home = entry->pw_dir;
    user.name = entry->pw_name;
  } else if (const char* const home = std::getenv("HOME"); home != nullptr) {
    user.home = home;
  }
  return user;
}

bool is_configured(const SshUser& user, const std::string& config_path) {
  const std::vector<std::string> files =
      config_path.empty()
          ? std::vector<std::string>{user.home + "/.ssh/config", "/etc/ssh/ssh_config"}
          : std::vector<std::string>{config_path};
  return std::any_of(files.begin(), files.end(), [](const std::string& file) {
    return may_configure(read_file(file, kMaxFileBytes).value_or(""), finds_no_file);
  });
}

std::string target_key(const Host& host) {
  return host.user + "@" + host.name + ":" + std::to_string(host.port);
}

std::string config_path_of_environment() {
  const char* const path = std::getenv("IVY_SSH_CONFIG");
  return path != nullptr ? path : "";
}

// Returns an error if the file cannot be read. OpenSSH treats a missing configuration of the user
// as empty, but not a file that is named with -F.
Result<void> can_read(const std::string& path) {
  std::error_code ignored;
  int error = std::filesystem::is_directory(path, ignored) ? EISDIR : 0;
  if (error == 0 && access(path.c_str(), R_OK) != 0) error = errno;
  if (error == 0) return {};
  Error unreadable = errno_error(Code::kInvalidArgument,
                                 "IVY_SSH_CONFIG names " + path + ", which cannot be read", error);
  unreadable.fix = "unset IVY_SSH_CONFIG, or set it to the path of an ssh configuration";
  return unreadable;
}

}  // namespace

std::string KnownHostsFiles::first_needing_openssh(const std::vector<std::string>& paths) {
  const std::lock_guard lock(mutex_);
  for (const std::string& path : paths) {
    const auto [checked, is_new] = checked_.try_emplace(path, false);
    if (is_new)
      checked->second = known_hosts_needs_client(read_file(path, kMaxFileBytes).value_or(""));
    if (checked->second) return path;
  }
  return {};
}

SshState::SshState(TransportContext& context)
    : context_(context), config_path_(config_path_of_environment()) {}

// On the pool, because the account may be in LDAP, and the home on a file system that stalls.
Awaitable<Result<void>> SshState::read_account(Sequence& sequence, std::string host) {
  const std::string what = config_path_.empty() ? "~/.ssh/config" : config_path_;
  if (!std::exchange(is_reading_account_, true)) {
    const auto read = [path = config_path_]() -> Result<Account> {
      if (!path.empty()) IVY_CHECK(can_read(path));
      Account account;
      account.user = current_user();
      account.is_configured = is_configured(account.user, path);
      return account;
    };
    // No deadline: --start-timeout limits the wait.
    context_.blocking().run(what, BlockingPool::kNoDeadline, read, [this](Result<Account> account) {
      account_ = std::move(account);
      for (const auto& arrive : std::exchange(waiting_for_account_, {})) arrive(true);
    });
  }
  const std::function<bool()> is_over = [this] { return account_.has_value(); };
  const std::function<void(const Arrival<bool>&)> listen = [this](const Arrival<bool>& arrive) {
    waiting_for_account_.push_back(arrive);
  };
  co_await wait_and_report(sequence, context_, host, what, is_over, listen);
  if (!account_->ok()) co_return account_->error();
  co_return Result<void>();
}

// The output of one `ssh -G`, for all callers that wait for it.
struct SshState::Answer final : LineChildEvents {
  ~Answer() {
    if (ssh) ssh->forget();
  }
  void child_output(const std::string& line) override { text += line + "\n"; }
  void child_error(const std::string&) override {}
  void child_exited(const ExitStatus& status) override {
    ssh = nullptr;
    end(status.is_success());
  }
  void end(bool is_good) {
    has_ended = true;
    if (!is_good) text.clear();
    for (const Arrival<bool>& arrive : std::exchange(waiting, {})) arrive(is_good);
  }

  std::shared_ptr<LineChild> ssh;
  std::string text;
  bool has_ended = false;
  std::vector<Arrival<bool>> waiting;
};

Awaitable<SshTarget> SshState::target_of(Sequence& sequence, Host host) {
  const std::string key = target_key(host);
  if (!targets_.contains(key)) {
    // A named variable, because GCC 12 destroys twice the temporary in an assignment that awaits.
    SshTarget made = co_await make_target(sequence, host);
    // A query that failed may succeed the next time, so its result is not kept.
    if (made.client_because == kUnanswered) co_return made;
    targets_.insert_or_assign(key, std::move(made));
  }
  SshTarget target = targets_.at(key);
  if (target.client_because.empty() && prefers_client(host))
    target.client_because = "an earlier failure of libssh";
  co_return target;
}

Awaitable<SshTarget> SshState::make_target(Sequence& sequence, Host host) {
  SshSettings settings, defaults;
  bool is_known = true;
  const Options& options = context_.options();
  const bool has_user_options = !options.ssh_command.empty() || !options.ssh_args.empty();
  const bool takes_options =
      options.ssh_command.empty() || is_ssh_program(options.ssh_command.front());
  if (takes_options && (has_user_options || account_->value().is_configured)) {
    std::vector<std::string> words = options.ssh_args;
    if (options.ssh_command.size() > 1)
      words.insert(words.begin(), options.ssh_command.begin() + 1, options.ssh_command.end());
    if (!config_path_.empty()) words.insert(words.end(), {"-F", config_path_});
    if (host.port != 0) words.insert(words.end(), {"-p", std::to_string(host.port)});
    if (!host.user.empty()) words.insert(words.end(), {"-l", host.user});
    words.insert(words.end(), {"--", host.name});
    const std::shared_ptr<Answer> answer = run_ssh_config(words);
    if (!defaults_) defaults_ = run_ssh_config({"-F", "none", "--", "localhost"});
    settings = co_await settings_of(sequence, answer);
    defaults = co_await settings_of(sequence, defaults_);
    is_known = !settings.empty() && !defaults.empty();
  } else {
    if (host.port != 0) settings["port"] = {std::to_string(host.port)};
    if (!host.user.empty()) settings["user"] = {host.user};
  }
  SshTarget target = ssh_target(host.name, settings, defaults, account_->value().user);
  if (!target.client_because.empty()) co_return target;
  if (!is_known) {
    target.client_because = kUnanswered;
  } else if (!context_.options().ssh_command.empty()) {
    target.client_because = "--ssh-command";
  } else if (!context_.options().ssh_args.empty()) {
    target.client_because = "--ssh-args";
  }
  if (!target.client_because.empty()) co_return target;
  const std::vector<std::string> files = known_hosts_files(target, account_->value().user);
  const auto check = [known_hosts = known_hosts_, files]() -> Result<std::string> {
    return known_hosts->first_needing_openssh(files);
  };
  const Result<std::string> checked = co_await call_blocking(
      sequence, context_, host.name, target.known_hosts, BlockingPool::kNoDeadline, check);
  if (const std::string file = checked.ok() ? *checked : ""; !file.empty()) {
    target.client_because = "@ lines in " + file;
    context_.note("known hosts",
                  "note: using the OpenSSH client because of the @cert-authority "
                  "or @revoked lines in " +
                      file);
  }
  co_return target;
}

std::shared_ptr<SshState::Answer> SshState::run_ssh_config(std::vector<std::string> words) {
  const std::vector<std::string>& own = context_.options().ssh_command;
  words.insert(words.begin(), {own.empty() ? "ssh" : own.front(), "-G"});
  const auto answer = std::make_shared<Answer>();
  const auto child = LineChild::start(context_.loop(), words, tool_environment(), *answer);
  if (!child.ok())
    answer->end(false);
  else
    answer->ssh = *child;
  return answer;
}

// Returns an empty result if ssh does not answer.
Awaitable<SshSettings> SshState::settings_of(Sequence& sequence, std::shared_ptr<Answer> answer) {
  const auto listen = [&](const Arrival<bool>& arrive) { answer->waiting.push_back(arrive); };
  if (!answer->has_ended) co_await sequence.wait_at_most<bool>(kAnswerTimeout, listen);
  co_return parse_ssh_settings(answer->has_ended ? answer->text : "");
}

Awaitable<Result<Descriptor>> SshState::agent(Sequence& sequence, std::string host,
                                              SshTarget target, bool is_redial) {
  const std::string path = ssh_agent_path(target);
  if (path.empty()) co_return Error{Code::kNotFound, "there is no SSH agent"};
  const auto silent_agent = silent_agents_.find(path);
  if (silent_agent != silent_agents_.end() && monotonic_ns() < silent_agent->second.until_ns)
    co_return Error{Code::kDeadlineExceeded, silent_agent->second.why};
  const auto limit = is_redial ? kAgentLimitRedial : kAgentLimit;
  const auto open = [path, limit] { return open_ssh_agent(path, limit); };
  const std::string what = "the SSH agent at " + path;
  Result<Descriptor> agent =
      co_await call_blocking(sequence, context_, host, what, 2 * limit, open);
  if (!agent.ok() && agent.error().code == Code::kDeadlineExceeded)
    note_silent_agent(path, agent.error().message, limit);
  co_return agent;
}

void SshState::note_silent_agent(const std::string& path, const std::string& why,
                                 std::chrono::nanoseconds duration) {
  silent_agents_[path] = {monotonic_ns() + duration.count(), why};
}

void SshState::remember_login(const Host& host, const SshTarget::Login& login) {
  const auto target = targets_.find(target_key(host));
  if (target != targets_.end()) target->second.first_login = login;
}

}  // namespace ivy
