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

#include "proto/os/files.h"

namespace ivy {
namespace {

// Longer than a name server takes to fail, which CanonicalizeHostname may wait for.
constexpr std::chrono::seconds kAnswerTimeout{10};
// A file beyond this is not one that a person wrote.
constexpr std::size_t kMaxFileBytes = 64u << 20;

SshUser current_user() {
  SshUser user;
  if (const passwd* entry = getpwuid(getuid()); entry != nullptr) {
    user.home = entry->pw_dir;
    user.name = entry->pw_name;
  }
  return user;
}

std::string config_path_of_environment() {
  const char* const path = std::getenv("IVY_SSH_CONFIG");
  return path != nullptr ? path : "";
}

bool finds_no_file(const std::string& pattern) {
  glob_t found{};
  const bool is_nothing =
      pattern.starts_with('/') && glob(pattern.c_str(), 0, nullptr, &found) == GLOB_NOMATCH;
  globfree(&found);
  return is_nothing;
}

// OpenSSH takes a missing file of the user's for an empty one, but not one that is named with -F.
Result<void> can_read(const std::string& path) {
  std::error_code ignored;
  int error = std::filesystem::is_directory(path, ignored) ? EISDIR : 0;
  if (error == 0 && access(path.c_str(), R_OK) != 0) error = errno;
  if (error == 0) return {};
  Error unreadable = errno_error(Code::kInvalidArgument,
                                 "IVY_SSH_CONFIG names " + path + ", which cannot be read", error);
  unreadable.fix = "unset IVY_SSH_CONFIG, or let it name an ssh configuration";
  return unreadable;
}

}  // namespace

SshState::SshState(CarrierContext& context)
    : context_(context), user_(current_user()), config_path_(config_path_of_environment()) {}

Result<NodeUpload*> SshState::upload() {
  if (!config_path_.empty()) IVY_CHECK(can_read(config_path_));
  return context_.node_upload();
}

// What one `ssh -G` says, for all who wait for it.
struct SshState::Answer {
  void end(bool is_good) {
    has_ended = true;
    if (!is_good) text.clear();
    for (const Arrival<bool>& arrive : std::exchange(waiting, {})) arrive(is_good);
  }
  std::string text;
  bool has_ended = false;
  std::vector<Arrival<bool>> waiting;
};

bool SshState::is_configured() {
  if (!is_configured_) {
    const std::vector<std::string> files =
        config_path_.empty()
            ? std::vector<std::string>{user_.home + "/.ssh/config", "/etc/ssh/ssh_config"}
            : std::vector<std::string>{config_path_};
    is_configured_ = std::any_of(files.begin(), files.end(), [](const std::string& file) {
      return may_configure(read_file(file, kMaxFileBytes).value_or(""), finds_no_file);
    });
  }
  return *is_configured_;
}

Awaitable<SshTarget> SshState::target_of(Sequence& sequence, Host host) {
  SshSettings settings, defaults;
  bool is_known = true;
  const Options& options = context_.options();
  const bool has_own_words = !options.ssh_command.empty() || !options.ssh_args.empty();
  const bool takes_options =
      options.ssh_command.empty() || is_ssh_program(options.ssh_command.front());
  if (takes_options && (has_own_words || is_configured())) {
    std::vector<std::string> words = options.ssh_args;
    if (options.ssh_command.size() > 1)
      words.insert(words.begin(), options.ssh_command.begin() + 1, options.ssh_command.end());
    if (!config_path_.empty()) words.insert(words.end(), {"-F", config_path_});
    if (host.port != 0) words.insert(words.end(), {"-p", std::to_string(host.port)});
    if (!host.user.empty()) words.insert(words.end(), {"-l", host.user});
    words.insert(words.end(), {"--", host.name});
    const std::shared_ptr<Answer> answer = ask_ssh(words);
    if (!defaults_) defaults_ = ask_ssh({"-F", "none", "--", "localhost"});
    settings = co_await settings_of(sequence, answer);
    defaults = co_await settings_of(sequence, defaults_);
    is_known = !settings.empty() && !defaults.empty();
  } else {
    if (host.port != 0) settings["port"] = {std::to_string(host.port)};
    if (!host.user.empty()) settings["user"] = {host.user};
  }
  SshTarget target = ssh_target(host.name, settings, defaults, user_);
  if (!target.client_because.empty()) co_return target;
  if (!is_known) {
    target.client_because = "what ssh -G does not tell";
  } else if (!context_.options().ssh_command.empty()) {
    target.client_because = "--ssh-command";
  } else if (!context_.options().ssh_args.empty()) {
    target.client_because = "--ssh-args";
  } else if (prefers_client(host)) {
    target.client_because = "what libssh could not do before";
  } else if (const std::string file = file_for_the_client(target); !file.empty()) {
    target.client_because = "@ lines in " + file;
    context_.note("known hosts",
                  "note: ssh is the OpenSSH client, because of the @cert-authority "
                  "or @revoked lines in " +
                      file);
  }
  co_return target;
}

std::shared_ptr<SshState::Answer> SshState::ask_ssh(std::vector<std::string> words) {
  const std::vector<std::string>& own = context_.options().ssh_command;
  words.insert(words.begin(), {own.empty() ? "ssh" : own.front(), "-G"});
  const auto answer = std::make_shared<Answer>();
  LineChild::Handlers handlers;
  handlers.output_line = [answer](const std::string& line) { answer->text += line + "\n"; };
  handlers.ended = [answer](const ExitStatus& status) { answer->end(status.success()); };
  const auto child =
      LineChild::start(context_.loop(), words, tool_environment(), std::move(handlers));
  if (!child.ok()) answer->end(false);
  return answer;
}

// Empty: it does not answer.
Awaitable<SshSettings> SshState::settings_of(Sequence& sequence, std::shared_ptr<Answer> answer) {
  const auto listen = [&](const Arrival<bool>& arrive) { answer->waiting.push_back(arrive); };
  if (!answer->has_ended) co_await sequence.wait_at_most<bool>(kAnswerTimeout, listen);
  co_return parse_ssh_settings(answer->has_ended ? answer->text : "");
}

std::string SshState::file_for_the_client(const SshTarget& target) {
  for (const std::string& path : known_hosts_files(target, user_)) {
    const auto [checked, is_new] = known_hosts_checked_.try_emplace(path, false);
    if (is_new)
      checked->second = known_hosts_needs_client(read_file(path, kMaxFileBytes).value_or(""));
    if (checked->second) return path;
  }
  return {};
}

}  // namespace ivy
