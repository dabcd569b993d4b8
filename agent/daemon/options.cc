// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/options.h"

#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "proto/contract/build.h"
#include "proto/contract/edit_distance.h"
#include "proto/contract/text.h"
#include "proto/os/process.h"
#include "proto/os/user_directories.h"
#include "proto/pages/command_page.h"
#include "proto/pages/completions.h"

namespace ivy {
namespace {

constexpr int kMaxWaitS = 7 * 86'400;
constexpr std::array<std::string_view, 5> kCertificateVerbs{"ca", "cert", "renew", "revoke",
                                                            "certs"};

Error usage_error(const std::string& message, const std::string& fix = {}) {
  return Error{Code::kInvalidArgument, message, fix};
}

std::string value_of(const Environment& environment, const char* name) {
  const std::string* const found = find_variable(environment, name);
  return found == nullptr ? std::string() : *found;
}

// Returns the first directory of "A:B", the form in which systemd passes several.
std::string first_directory(const std::string& list) { return list.substr(0, list.find(':')); }

std::string default_socket(const Environment& environment, std::uint32_t uid) {
  const std::string given = first_directory(value_of(environment, "RUNTIME_DIRECTORY"));
  if (!given.empty()) return given + "/agent.sock";
  const std::string user = value_of(environment, "XDG_RUNTIME_DIR");
  const std::string own = ivyrun_runtime_directory(user.c_str());
  if (!own.empty()) return own + "/agent.sock";
  return ivyrun_tmp_directory(uid) + "/agent.sock";
}

std::string default_state(const Environment& environment) {
  const std::string given = first_directory(value_of(environment, "STATE_DIRECTORY"));
  if (!given.empty()) return given;
  // Each host has a separate directory, because hosts may share a home.
  const std::string below = "/ivyrun/agent/" + own_host_name();
  const std::string state = value_of(environment, "XDG_STATE_HOME");
  // The XDG specification says that a relative path counts as unset.
  if (state.starts_with('/')) return state + below;
  const std::string home = value_of(environment, "HOME");
  return home.empty() ? std::string() : home + "/.local/state" + below;
}

// The variables into which CLI11 parses the flags of all verbs.
struct Raw {
  std::vector<std::string> listen;
  ServeCommand serve;
  int insecure_port = -1;
  DrainCommand drain;
  int wait_s = 0;
  StatusCommand status;
};

// Adds a flag. `usage` has the flag and the name of its value, such as "--socket FILE".
template <class T>
CLI::Option* add_value(CLI::App& verb, std::string_view usage, T& target, const char* text) {
  const std::string flag(take_part(usage, ' '));
  return verb.add_option(flag, target, text)->type_name(std::string(usage));
}

void add_serving_verbs(CLI::App& app, Raw& raw) {
  CLI::App& serve = *app.add_subcommand("serve", "serve one user's launchers on this host");
  add_value(serve, "--listen ADDRESS:PORT", raw.listen,
            "Serve launchers of other hosts on ADDR:PORT or PORT, with certificates; "
            "may be given several times");
  add_value(serve, "--certificates DIR", raw.serve.certificates,
            "Directory with ca.crt, ca.crl, host.crt and host.key (default: "
            "$CREDENTIALS_DIRECTORY, /etc/ivyrun/agent or ~/.config/ivyrun/agent)");
  add_value(serve, "--socket FILE", raw.serve.socket_path,
            "Unix socket for launchers of this host");
  add_value(serve, "--state DIR", raw.serve.state_directory,
            "Directory for state that must survive a restart of the agent");
  add_value(serve, "--metrics-file FILE", raw.serve.metrics_file,
            "Write the agent's state to FILE for Prometheus (node_exporter's textfile collector) "
            "every 15 s");
  add_value(serve, "--user-name NAME", raw.serve.user_name,
            "User name that launchers' certificates must have (default: this account's)");
  add_value(serve, "--insecure-loopback PORT", raw.insecure_port,
            "Serve all users of this host, without certificates, on 127.0.0.1 and ::1")
      ->check(CLI::Range(0, 65535));
}

void add_watching_verbs(CLI::App& app, Raw& raw) {
  CLI::App& drain =
      *app.add_subcommand("drain", "accept no new jobs until --undo, even after a restart");
  drain.add_flag("--undo", raw.drain.undo, "Accept new jobs again");
  drain.add_flag("--stop", raw.drain.stop_jobs, "Also stop the running jobs gracefully");
  add_value(drain, "--wait SECONDS", raw.wait_s, "Wait at most SECONDS until all jobs have exited")
      ->check(CLI::Range(0, kMaxWaitS));
  add_value(drain, "--socket FILE", raw.drain.socket_path, "Unix socket of the agent");

  CLI::App& status = *app.add_subcommand("status", "show this host's agent and its jobs");
  status.add_flag("--json", raw.status.json, "Print one JSON object, for programs");
  add_value(status, "--socket FILE", raw.status.socket_path, "Unix socket of the agent");
}

// Adds the verbs that ivy-agent-cert parses, for the help and for completions.
void add_certificate_verbs(CLI::App& app, Raw&) {
  app.add_subcommand("ca", "make a certificate authority: ca init");
  app.add_subcommand("cert", "make a certificate for a host, or with --user for a user");
  app.add_subcommand("renew", "renew the certificate of a host or a user");
  app.add_subcommand("revoke", "revoke certificates: writes a new ca.crl");
  app.add_subcommand("certs", "list the certificates");
}

Result<AgentCommand> serve_command(Raw& raw, const Environment& environment, std::uint32_t uid) {
  ServeCommand command = std::move(raw.serve);
  for (const std::string& text : raw.listen)
    command.listen.push_back(IVY_TRY(parse_listen_address(text)));
  if (raw.insecure_port >= 0)
    command.insecure_loopback = static_cast<std::uint16_t>(raw.insecure_port);
  if (command.socket_path.empty()) command.socket_path = default_socket(environment, uid);
  if (command.socket_path[0] != '/')
    return usage_error("--socket " + command.socket_path + " is not an absolute path");
  if (command.state_directory.empty()) command.state_directory = default_state(environment);
  if (command.state_directory.empty())
    return usage_error(
        "no directory for the agent's state: neither $STATE_DIRECTORY nor $HOME is set",
        "choose a directory with --state");
  if (command.state_directory[0] != '/')
    return usage_error("--state " + command.state_directory + " is not an absolute path");
  if (!command.metrics_file.empty() && command.metrics_file[0] != '/')
    return usage_error("--metrics-file " + command.metrics_file + " is not an absolute path");
  return AgentCommand(std::move(command));
}

Result<AgentCommand> drain_command(Raw& raw) {
  if (raw.drain.undo && raw.drain.stop_jobs)
    return usage_error("--undo and --stop cannot be used together");
  raw.drain.wait = std::chrono::seconds(raw.wait_s);
  return AgentCommand(std::move(raw.drain));
}

Result<AgentCommand> command_of(const CLI::App& app, Raw& raw, const Environment& environment,
                                std::uint32_t uid) {
  if (app.got_subcommand("serve")) return serve_command(raw, environment, uid);
  if (app.got_subcommand("drain")) return drain_command(raw);
  return AgentCommand(std::move(raw.status));
}

// Converts an option of CLI11 to an entry of a page.
PageOption page_option(const CLI::Option& option) {
  PageOption entry;
  for (const std::string& letter : option.get_snames()) entry.spellings.push_back("-" + letter);
  for (const std::string& name : option.get_lnames()) entry.spellings.push_back("--" + name);
  if (entry.spellings.empty()) entry.spellings.push_back(option.get_name());
  if (option.get_items_expected_max() > 0 && !option.get_positional())
    entry.value = option.get_type_name().substr(0, option.get_type_name().find(":INT in"));
  entry.text = option.get_description();
  return entry;
}

void add_verbs(const CLI::App& app, const std::string& lead, CommandPage& page) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!verb->get_subcommands([](const CLI::App*) { return true; }).empty()) {
      add_verbs(*verb, verb->get_name() + " ", page);
      continue;
    }
    PageVerb& made = page.verbs.emplace_back();
    made.name = lead + verb->get_name();
    made.usage = made.name;
    made.text = verb->get_description();
    for (const CLI::Option* option : verb->get_options()) {
      if (option->check_lname("help")) continue;
      if (option->get_positional()) made.usage += " [" + option->get_name() + "]";
      made.options.push_back(page_option(*option));
    }
  }
}

CommandPage page_of(const CLI::App& app) {
  CommandPage page;
  page.name = "ivy-agent";
  page.summary = "start ivyrun's workers on this host, for one user";
  page.usages = {"ivy-agent VERB [flags]"};
  page.description =
      "Starts ivyrun's workers on this host, for one user, over mutual TLS, and makes the "
      "certificates for it.\n"
      "See docs/agents.md for how to set it up.";
  page.examples = {{"ivy-agent ca init", "once, for a cluster"},
                   {"ivy-agent cert node01 10.0.0.1 --serves alice", "the certificate of a host"},
                   {"ivy-agent serve --listen 7411", "on that host, as that user"}};
  add_verbs(app, "", page);
  page.width = help_width();
  page.closing =
      "`ivy-agent VERB --help` describes a verb. --version prints the version and the build.\n";
  return page;
}

// Returns the help of the verb that was typed with --help, or else that of the program.
std::string wanted_help(const CLI::App& app) {
  const CommandPage page = page_of(app);
  std::string name;
  for (const CLI::App* at = &app;;) {
    const std::vector<CLI::App*> typed = at->get_subcommands();
    if (typed.empty()) break;
    at = typed.front();
    name += (name.empty() ? "" : " ") + at->get_name();
  }
  for (const PageVerb& verb : page.verbs)
    if (verb.name == name) return verb_help(page, verb);
  return help_text(page, HelpLength::kAll);
}

// Returns the verb that the first word probably meant. Returns an empty text if it is a verb, or if
// no verb is similar.
std::string meant_verb(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front().starts_with('-')) return {};
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(verb->get_name());
  const std::vector<std::string_view> known(names.begin(), names.end());
  const std::string meant = nearest_word(arguments.front(), known);
  return meant == arguments.front() ? std::string() : meant;
}

}  // namespace

Result<ListenAddress> parse_listen_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::string address = colon == std::string::npos ? std::string() : text.substr(0, colon);
  const std::string digits = colon == std::string::npos ? text : text.substr(colon + 1);
  const std::optional<std::uint16_t> port = to_number<std::uint16_t>(digits);
  const std::string fix = "write it as 7411, 10.0.0.1:7411 or [::]:7411";
  if (!port) return usage_error("--listen " + text + ": \"" + digits + "\" is not a port", fix);
  const bool bracketed = address.size() > 2 && address.front() == '[' && address.back() == ']';
  if (bracketed) address = address.substr(1, address.size() - 2);
  in6_addr ignored{};
  const int family = bracketed ? AF_INET6 : AF_INET;
  if (!address.empty() && inet_pton(family, address.c_str(), &ignored) != 1)
    return usage_error("--listen " + text + ": \"" + address + "\" is not a numeric address", fix);
  return ListenAddress{address, *port};
}

Result<AgentCommand> parse_agent_command(const std::vector<std::string>& arguments,
                                         const Environment& environment, std::uint32_t uid) {
  if (!arguments.empty() && std::find(kCertificateVerbs.begin(), kCertificateVerbs.end(),
                                      arguments.front()) != kCertificateVerbs.end())
    return AgentCommand(CertificateCommand{arguments});
  if (arguments.empty())
    return usage_error("no verb given",
                       "ivy-agent serve, status, drain, ca, cert, renew, revoke or certs; see "
                       "`ivy-agent --help`");
  Raw raw;
  CLI::App app("ivy-agent: opens jobs of ivyrun on this host, for one user", "ivy-agent");
  app.set_version_flag("-V,--version", "ivy-agent " + std::string(version()) + " build " +
                                           std::string(build_name()));
  app.require_subcommand(1);
  for (const auto add : {add_serving_verbs, add_watching_verbs, add_certificate_verbs})
    add(app, raw);
  if (!arguments.empty() && arguments.front() == "--complete")
    return AgentCommand(
        TextCommand{completions(page_of(app), {arguments.begin() + 1, arguments.end()}) + "\n"});
  if (!arguments.empty() && arguments.front() == "--generate") {
    const std::optional<std::string> text =
        generated_page(page_of(app), arguments.size() > 1 ? arguments[1] : "");
    if (text) return AgentCommand(TextCommand{*text});
    return usage_error("--generate makes " + std::string(kGeneratedForms));
  }
  // CLI11 takes arguments from the back.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return AgentCommand(TextCommand{wanted_help(app)});
  } catch (const CLI::CallForVersion& shown) {
    return AgentCommand(TextCommand{shown.what() + std::string("\n")});
  } catch (const CLI::ParseError& error) {
    const std::string meant = meant_verb(app, arguments);
    if (!meant.empty())
      return usage_error("unknown verb \"" + arguments.front() + "\"", "ivy-agent " + meant);
    return usage_error(error.what(), "see `ivy-agent --help`");
  }
  return command_of(app, raw, environment, uid);
}

}  // namespace ivy
