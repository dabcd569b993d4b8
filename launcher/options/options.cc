// SPDX-License-Identifier: Apache-2.0
// A command line goes through four steps:
//
//   scan      argv to settings {flag, value}: spellings, '_' and '-', the start of the program
//   defaults  IVY_<FLAG>, PET_<FLAG> and config files for flags that were not typed (config_files)
//   sort out  other launchers' flags: a note, or an error (these three: option_scan)
//   bind      CLI11 converts the values and stores them in Options; then values of several flags
#include "launcher/options/options.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <map>
#include <set>

#include "launcher/options/app_file.h"
#include "launcher/options/config_files.h"
#include "launcher/options/exec_command.h"
#include "launcher/options/flag_values.h"
#include "launcher/options/option_help.h"
#include "launcher/options/option_scan.h"
#include "launcher/options/option_table.h"
#include "launcher/options/option_values.h"
#include "launcher/options/policy.h"
#include "proto/contract/build.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/limits.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/pages/completions.h"

namespace ivy {
namespace {

// How long --doctor waits for hosts.
constexpr std::chrono::seconds kDoctorTimeout{20};
// Limits of --check and its time. The commands of all hosts travel in one message each.
constexpr std::size_t kMaxChecks = 32;
constexpr std::size_t kMaxCheckBytes = 8u << 10;
constexpr std::chrono::seconds kShortestCheck{1}, kShortestLoad{10};
constexpr int kMaxExpectedDevices = 4'096;

// Values that depend on several flags.
struct Raw {
  std::optional<int> node_rank;
  std::string per_host_text = "auto";
  std::vector<std::string> hosts;
  std::vector<std::string> roles;
  std::vector<std::string> limits;
  std::vector<std::string> fetch;
  std::vector<std::string> checks;
  std::vector<std::string> drill;
  std::string hostfile;
  std::string transport;
  std::vector<std::string> exec;
  std::vector<std::string> container_mounts;
  std::vector<std::string> app_directories;
  int fake_hosts = 0;
  bool is_module = false;
  bool no_python = false;
  bool dedup = false;
  bool wants_help = false;
  bool wants_version = false;
};

// A CLI::App, and the spellings that the user chose, for messages.
class Binder {
 public:
  explicit Binder(const Scanned& scanned) {
    app_.set_help_flag();
    for (const Setting& setting : scanned.settings) {
      spellings_[std::string(setting.entry->name)] = setting.spelling;
      if (setting.origin.empty()) typed_.emplace(setting.entry->name);
      if (!setting.entry->joined_value.empty())
        texts_[std::string(setting.entry->name)] = setting.value;
      tokens_.push_back("--" + std::string(setting.entry->name) +
                        (setting.entry->value.empty() ? "" : "=" + setting.value));
    }
  }

  // Binds a flag of which the last value counts. `take` returns Result<void>.
  template <class Take>
  void value(const std::string& name, Take take) {
    if (is_wanted(name)) add_flag_value(app_, "--" + name, spellings_[name], take);
  }

  // Binds a flag whose value is parsed and stored in `target`.
  template <class T, class Parse>
  void parsed(const std::string& name, T& target, Parse parse) {
    value(name, stored_in(target, parse));
  }

  void text(const std::string& name, std::string& target) {
    if (is_wanted(name)) app_.add_option("--" + name, target)->take_last();
  }
  void list(const std::string& name, std::vector<std::string>& target) {
    if (is_wanted(name)) app_.add_option("--" + name, target)->allow_extra_args(false)->take_all();
  }
  void on(const std::string& name, bool& target) {
    if (is_wanted(name)) app_.add_flag("--" + name, target);
  }
  void count(const std::string& name, int& target) {
    if (is_wanted(name)) app_.add_flag("--" + name, target);
  }

  template <class T>
  void choice(const std::string& name, T& target, std::vector<std::pair<std::string, T>> choices) {
    parsed(name, target, one_of<T>(std::move(choices)));
  }

  Result<void> run() {
    for (const OptionEntry& entry : option_table())
      IVY_ASSERT(entry.kind != OptionKind::kHonoured || bound_.contains(entry.name));
    return parse_words(app_, tokens_);
  }

  // Returns the flag as the user wrote it, for messages about two flags.
  std::string spelling(std::string_view name) const {
    const auto found = spellings_.find(name);
    return found == spellings_.end() ? "--" + std::string(name) : found->second;
  }
  bool is_given(std::string_view name) const { return spellings_.contains(name); }
  // Returns true if the flag was given on the command line.
  bool is_typed(std::string_view name) const { return typed_.contains(name); }
  // Returns the last value of a switch that may have a joined value; empty if it was not given.
  std::string value_of(std::string_view name) const {
    const auto found = texts_.find(name);
    return found == texts_.end() ? "" : found->second;
  }

 private:
  // CLI11 compares each new option with all previous ones, so only flags that were given are added:
  // adding all would cost a quarter of a millisecond at every start.
  bool is_wanted(const std::string& name) {
    bound_.insert(name);
    return spellings_.contains(name);
  }

  CLI::App app_;
  std::set<std::string, std::less<>> bound_;
  std::set<std::string, std::less<>> typed_;
  std::map<std::string, std::string, std::less<>> spellings_;
  // Switches that may have a joined value.
  std::map<std::string, std::string, std::less<>> texts_;
  std::vector<std::string> tokens_;
};

auto number_between(int low, int high) {
  return [low, high](const std::string& text) { return parse_number(text, low, high); };
}

auto port_number() {
  return [](const std::string& text) -> Result<std::uint16_t> {
    return static_cast<std::uint16_t>(IVY_TRY(parse_number(text, 1, 65535)));
  };
}

void bind_placement(Binder& binder, HostOptions& options, Raw& raw) {
  binder.list("hosts", raw.hosts);
  binder.text("hostfile", raw.hostfile);
  binder.text("hosts-from", options.hosts_from);
  binder.parsed("include", options.include, parse_host_filter);
  binder.parsed("exclude", options.exclude, parse_host_filter);
  binder.parsed("fake-hosts", raw.fake_hosts, number_between(1, static_cast<int>(kMaxHosts)));
  binder.parsed("map-by", options.map_by, parse_map_by);
  binder.parsed("num-proc", options.num_proc, parse_num_proc);
  binder.value("nproc-per-node", [&](const std::string& text) -> Result<void> {
    raw.per_host_text = text;
    options.per_host = IVY_TRY(parse_per_host(text));
    return {};
  });
  binder.parsed("spares", options.spares, number_between(0, static_cast<int>(kMaxHosts)));
  binder.choice<PickChoice>(
      "pick", options.pick,
      {{"first", PickChoice::kFirst}, {"healthiest", PickChoice::kHealthiest}});
  binder.parsed("grow", options.grow, parse_duration);
  binder.value("nnodes", [&](const std::string& text) -> Result<void> {
    const std::size_t colon = text.find(':');
    const int low = IVY_TRY(parse_number(text.substr(0, colon), 1, static_cast<int>(kMaxHosts)));
    options.num_nodes = low;
    options.min_nodes.reset();
    if (colon == std::string::npos) return {};
    const int high = IVY_TRY(parse_number(text.substr(colon + 1), 1, static_cast<int>(kMaxHosts)));
    if (high < low)
      return usage_error("a range of hosts is MIN:MAX, but " + text + " has a MIN greater than MAX",
                         "--nnodes " + std::to_string(high) + ":" + std::to_string(low));
    options.num_nodes = high;
    // torchrun's users write "2:2" for a fixed number.
    if (low < high) options.min_nodes = low;
    return {};
  });
}

void bind_devices(Binder& binder, DeviceOptions& options) {
  binder.choice<VisibleChoice>("visible", options.visible,
                               {{"all", VisibleChoice::kAll}, {"own", VisibleChoice::kOwn}});
  // 1024 is more than any host has.
  binder.parsed("gpus-per-proc", options.gpus_per_proc, number_between(1, 1024));
  // More than the largest number of devices that is worth simulating.
  binder.parsed("cpu-devices", options.cpu_devices, number_between(1, 4096));
  binder.on("oversubscribe", options.oversubscribe);
  binder.list("device-env", options.device_env);
  binder.parsed("bind-to", options.bind_to, parse_bind_to);
  binder.on("report-bindings", options.report_bindings);
  binder.value("display", [&](const std::string& text) -> Result<void> {
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::string_view word = take_part(rest, ',');
      if (word != "map" && word != "alloc" && word != "bindings" && word != "bind")
        return usage_error(in_quotes(word) + " is not a kind of display", "map, bindings, or both");
      (word.starts_with("bind") ? options.report_bindings : options.display_map) = true;
    }
    return {};
  });
}

// Flags for programs that run in addition to the workers.
void bind_app(Binder& binder, WorkerOptions& options, Raw& raw) {
  binder.value("app", [&](const std::string& text) -> Result<void> {
    options.app = text == "jax-service" ? App::kJaxService : App::kRoles;
    if (options.app == App::kRoles) options.app_spec = IVY_TRY(find_app(text, raw.app_directories));
    return {};
  });
  binder.list("role", raw.roles);
  binder.value("app-args", [&](const std::string& text) -> Result<void> {
    for (const std::string_view word : words_of(text)) options.app_args.emplace_back(word);
    return {};
  });
  binder.parsed("tf-roles", options.tf_roles, parse_tf_roles);
}

void bind_command(Binder& binder, WorkerOptions& options, Raw& raw) {
  binder.on("module", raw.is_module);
  binder.on("no-python", raw.no_python);
  binder.on("allow-singletons", options.allow_singletons);
  binder.on("no-python-hook", options.no_python_hook);
  binder.choice<std::string>("nccl-profiler", options.nccl_profiler,
                             {{"off", "off"}, {"calls", "calls"}, {"kernels", "kernels"}});
  binder.parsed("backend", options.profile, parse_profile);
  bind_app(binder, options, raw);
  binder.text("python", options.python);
  binder.text("wdir", options.working_directory);
  binder.list("export", options.exports);
  binder.list("env-file", options.env_files);
  binder.choice<EnvChoice>(
      "env", options.env_choice,
      {{"safe", EnvChoice::kListed}, {"all", EnvChoice::kAll}, {"none", EnvChoice::kNone}});
  binder.list("rlimit", raw.limits);
  binder.parsed("wrap", options.wrap, parse_wrap);
  binder.parsed("wrap-ranks", options.wrap_ranks, parse_show_ranks);
  binder.text("activate", options.activate);
  binder.parsed("preload", options.preload, parse_modules);
  binder.parsed("stdin", options.input, parse_input);
}

void bind_stage(Binder& binder, StageOptions& options) {
  binder.on("stage", options.stage);
  if (const std::string value = binder.value_of("stage"); value != "true" && !value.empty()) {
    const std::size_t colon = value.find(':');
    options.stage_directory = value.substr(0, colon);
    if (options.stage_directory.empty()) options.stage_directory = ".";
    if (colon != std::string::npos)
      for (const std::string_view pattern :
           parts_of(std::string_view(value).substr(colon + 1), ','))
        options.stage_patterns.emplace_back(pattern);
  }
  binder.parsed("stage-to", options.stage_to, parse_stage_target);
  binder.parsed("stage-limit", options.stage_limit, parse_size);
  binder.on("stage-venv", options.stage);
  const std::string venv = binder.value_of("stage-venv");
  if (venv == "uv") options.stage_venv = StageVenv::kUv;
  if (venv == "true") options.stage_venv = StageVenv::kActive;
}

void bind_output(Binder& binder, OutputOptions& options, Raw& raw) {
  binder.parsed("label", options.label, parse_label);
  binder.on("timestamps", options.timestamps);
  binder.parsed("show-ranks", options.show_ranks, parse_show_ranks);
  binder.value("local-ranks-filter", [&](const std::string& text) -> Result<void> {
    options.show_ranks = IVY_TRY(parse_show_ranks(text));
    options.show_ranks.local = true;
    return {};
  });
  binder.text("log-dir", options.log_dir);
  binder.parsed("output", options.output, parse_output_pattern);
  binder.choice<LogLocation>(
      "log-to", options.log_to,
      {{"head", LogLocation::kHead}, {"node", LogLocation::kNode}, {"both", LogLocation::kBoth}});
  binder.parsed("redirects", options.redirects, parse_streams);
  binder.parsed("tee", options.tee, parse_streams);
  binder.on("raw", options.raw);
  binder.parsed("color", options.color, parse_colour_choice());
  binder.choice<OverflowChoice>(
      "console-overflow", options.overflow,
      {{"block", OverflowChoice::kBlock}, {"drop", OverflowChoice::kDrop}});
  binder.choice<SummaryChoice>("summary", options.summary,
                               {{"auto", SummaryChoice::kAuto},
                                {"off", SummaryChoice::kOff},
                                {"json", SummaryChoice::kJson}});
  binder.parsed("events", options.events, parse_event_target);
  binder.parsed("name", options.name, parse_job_name);
  binder.on("dedup", raw.dedup);
  binder.parsed("metrics-file", options.metrics_file, absolute_log_path);
  binder.parsed("progress-match", options.progress_match, parse_progress_pattern);
  binder.text("progress-file", options.progress_file);
}

void bind_fetch(Binder& binder, FetchOptions& options, Raw& raw) {
  binder.list("fetch", raw.fetch);
  binder.parsed("fetch-limit", options.fetch_limit, parse_size);
  binder.parsed("fetch-timeout", options.fetch_timeout, parse_duration);
}

void bind_checks(Binder& binder, CheckOptions& options, Raw& raw) {
  binder.list("check", raw.checks);
  binder.parsed("check-timeout", options.check_timeout, parse_duration);
  binder.parsed("expect-gpus", options.expect_gpus, number_between(0, kMaxExpectedDevices));
  binder.on("check-load", options.check_load);
}

// --notice-time. Longer than any notice of a cloud, except for planned maintenance.
constexpr std::chrono::minutes kLongestNotice{10};

Result<std::chrono::milliseconds> parse_notice_time(const std::string& text) {
  const std::chrono::milliseconds time = IVY_TRY(parse_duration(text));
  if (time <= kLongestNotice) return time;
  return usage_error("--notice-time is at most 10m");
}

void bind_lifecycle(Binder& binder, LifecycleOptions& options) {
  binder.parsed("start-timeout", options.start_timeout, parse_duration);
  // 0 means no limit, as for timeout(1) and Slurm.
  binder.value("timeout", [&](const std::string& text) -> Result<void> {
    const std::chrono::milliseconds limit = IVY_TRY(parse_duration(text));
    options.timeout.reset();
    if (limit.count() > 0) options.timeout = limit;
    return {};
  });
  binder.parsed("shutdown-timeout", options.shutdown_timeout, parse_duration);
  binder.parsed(
      "lease", options.lease, [](const std::string& text) -> Result<std::chrono::milliseconds> {
        const std::chrono::milliseconds lease = IVY_TRY(parse_duration(text));
        if (lease >= kShortestLease) return lease;
        const auto shortest = std::chrono::ceil<std::chrono::seconds>(kShortestLease).count();
        return usage_error("a lease must be " + std::to_string(shortest) +
                           " s or more (two heartbeats)");
      });
  binder.value("stall-timeout", [&](const std::string& text) -> Result<void> {
    options.stall_timeout = std::chrono::ceil<std::chrono::seconds>(IVY_TRY(parse_duration(text)));
    return {};
  });
  binder.value("exit-timeout", [&](const std::string& text) -> Result<void> {
    options.exit_timeout = std::chrono::ceil<std::chrono::seconds>(IVY_TRY(parse_duration(text)));
    return {};
  });
  binder.choice<OnStall>("on-stall", options.on_stall,
                         {{"report", OnStall::kReport}, {"stop", OnStall::kStop}});
  binder.parsed("stop-before-end", options.stop_before_end, parse_duration);
  binder.value("preempt-signal", [&](const std::string& text) -> Result<void> {
    const int signal = signal_number(text);
    if (signal == 0) return usage_error("unknown signal " + in_quotes(text), "USR1, TERM, ...");
    if (signal == SIGKILL || signal == SIGSTOP)
      return usage_error(signal_name(signal) + " cannot be caught by a process", "USR1 or TERM");
    options.preempt_signal = signal;
    return {};
  });
  binder.on("requeue", options.requeue);
  binder.choice<WatchNotices>("watch-notices", options.watch_notices,
                              {{"auto", WatchNotices::kAuto},
                               {"aws", WatchNotices::kAws},
                               {"gcp", WatchNotices::kGcp},
                               {"azure", WatchNotices::kAzure},
                               {"slurm", WatchNotices::kSlurm},
                               {"none", WatchNotices::kNone}});
  binder.parsed("notice-time", options.notice_time, parse_notice_time);
  binder.on("detach", options.detach);
  binder.choice<OnFailure>("on-failure", options.on_failure,
                           {{"restart", OnFailure::kRestart},
                            {"shrink", OnFailure::kShrink},
                            {"replace", OnFailure::kReplace}});
  binder.parsed("min-workers", options.min_workers, number_between(1, kMaxWorkers));
  binder.parsed("max-restarts", options.max_restarts, number_between(0, kMaxRestarts));
  binder.parsed("restart-on", options.restart_on, parse_cause_list);
  binder.parsed("never-restart", options.never_restart, parse_cause_list);
  binder.parsed("condemn-on", options.condemn_on, parse_condemning_causes);
  binder.parsed("linger", options.linger, parse_duration);
}

void bind_network(Binder& binder, NetworkOptions& options) {
  binder.text("iface", options.interface);
  binder.text("master-addr", options.master_addr);
  binder.on("no-store", options.no_store);
  binder.value("port-range", [&](const std::string& text) -> Result<void> {
    std::tie(options.port_low, options.port_high) = IVY_TRY(parse_port_range(text));
    return {};
  });
  binder.value("master-port", [&](const std::string& text) -> Result<void> {
    // torchrun reads 0 as "any free port", which is the default here.
    if (text == "0") return {};
    options.port_low = IVY_TRY(port_number()(text));
    options.port_high = options.port_low;
    return {};
  });
}

// --transport: one of ivyrun's transports, or the name of a command.
Result<void> take_transport(const std::string& text, const std::vector<NamedCommand>& named,
                            TransportOptions& options) {
  std::string allowed;
  for (const auto& [word, choice] : transport_choices()) {
    allowed += word + ", ";
    if (word != text) continue;
    options.transport = choice;
    return {};
  }
  options.transport = TransportChoice::kExec;
  std::vector<NamedCommand> commands = named;
  commands.insert(commands.end(), own_commands().begin(), own_commands().end());
  for (const NamedCommand& command : commands) {
    if (command.name != text) continue;
    options.exec_command = IVY_TRY(parse_exec(command.text));
    return {};
  }
  std::set<std::string> names;
  for (const NamedCommand& command : commands) names.insert(command.name);
  return usage_error(
      in_quotes(text) + " is not one of " + allowed +
          joined(std::vector<std::string>(names.begin(), names.end()), ", "),
      "name a command in [transports] of ~/.config/ivyrun/config.toml, or use --exec "
      "COMMAND");
}

void bind_container(Binder& binder, ContainerOptions& options, Raw& raw) {
  binder.text("container", options.container);
  binder.choice<std::string>("container-runtime", options.container_runtime,
                             {{"podman", "podman"},
                              {"apptainer", "apptainer"},
                              {"enroot", "enroot"},
                              {"docker", "docker"}});
  binder.list("container-mount", raw.container_mounts);
  binder.parsed("container-args", options.container_args, quoted_words);
}

void bind_transports(Binder& binder, const Scanned& scanned, TransportOptions& options, Raw& raw) {
  binder.value("transport", [&](const std::string& text) {
    raw.transport = text;
    return take_transport(text, scanned.transports, options);
  });
  binder.parsed("exec", raw.exec, parse_exec);
  binder.parsed("ssh-port", options.ssh_port, port_number());
  const auto words = [](const std::string& text) -> Result<std::vector<std::string>> {
    const std::vector<std::string_view> parts = words_of(text);
    return std::vector<std::string>(parts.begin(), parts.end());
  };
  binder.parsed("ssh-command", options.ssh_command, words);
  binder.parsed("ssh-args", options.ssh_args, words);
  binder.parsed("srun-args", options.srun_args, words);
  // 512 connections are far more than a launcher can encrypt at a time, and below the limit of open
  // files.
  binder.parsed("fanout", options.fanout, number_between(1, 512));
}

// Binds torchrun's flags for one start on each host, and for the rendezvous of these starts.
void bind_rendezvous(Binder& binder, JoinOptions& options, Raw& raw) {
  binder.value("rdzv-backend", [](const std::string& text) -> Result<void> {
    if (text == "static" || text == "c10d") return {};
    // Another backend may name a server for the hosts' rendezvous. A job that ignores the server is
    // not the one that the user requested.
    return usage_error(
        "rendezvous backend \"" + text + "\" is not supported; ivyrun has its own store",
        "leave it out, and start ivyrun once: ivyrun -H host0,host1 ...");
  });
  binder.parsed("node-rank", raw.node_rank, number_between(0, static_cast<int>(kMaxHosts) - 1));
  binder.text("rdzv-endpoint", options.rdzv_endpoint);
  binder.text("rdzv-id", options.run_id);
  binder.text("join-secret-file", options.join_secret_file);
}

void bind_diagnosis(Binder& binder, DiagnosisOptions& options, Raw& raw) {
  binder.value("config", [](const std::string&) -> Result<void> { return {}; });
  binder.on("quiet", options.quiet);
  binder.count("verbose", options.verbose);
  binder.on("dry-run", options.dry_run);
  options.dry_run_json = binder.value_of("dry-run") == "json";
  binder.on("doctor", options.doctor);
  options.doctor_json = binder.value_of("doctor") == "json";
  binder.text("check-module", options.check_module);
  binder.parsed("healthy-hostfile", options.healthy_hostfile, absolute_log_path);
  binder.on("explain-env", options.explain_env);
  binder.list("drill", raw.drill);
  binder.on("help", raw.wants_help);
  binder.on("version", raw.wants_version);
}

void bind_all(Binder& binder, const Scanned& scanned, Options& options, Raw& raw) {
  bind_placement(binder, options, raw);
  bind_devices(binder, options);
  bind_command(binder, options, raw);
  bind_stage(binder, options);
  bind_output(binder, options, raw);
  bind_fetch(binder, options, raw);
  bind_checks(binder, options, raw);
  bind_lifecycle(binder, options);
  bind_network(binder, options);
  bind_container(binder, options, raw);
  bind_transports(binder, scanned, options, raw);
  bind_rendezvous(binder, options, raw);
  bind_diagnosis(binder, options, raw);
}

// Splits "node7" into "node" and "7"; the number is empty if the name does not end with one.
std::pair<std::string, std::string> cut_at_last_number(const std::string& name) {
  const std::size_t last = name.find_last_not_of("0123456789");
  const std::size_t cut = last == std::string::npos ? 0 : last + 1;
  return {name.substr(0, cut), name.substr(cut)};
}

// Rejects "-H node1 node2 train.py", in which node2 would be the program.
Result<void> check_commas(const Binder& binder, const std::string& host,
                          const std::vector<std::string>& command) {
  std::string hosts = host;
  for (const std::string& word : command) {
    const auto [stem, number] = cut_at_last_number(word);
    std::error_code ignored;
    if (stem != cut_at_last_number(host).first || number.empty() ||
        std::filesystem::exists(word, ignored))
      break;
    hosts += "," + word;
  }
  if (hosts == host) return {};
  return usage_error(command.front() + " is in the program's position, but looks like a host",
                     "separate hosts with commas: " + binder.spelling("hosts") + " " + hosts +
                         "\nif it is the program: " + binder.spelling("hosts") + " " + host +
                         " -- " + command.front());
}

// Rejects "-H node1 node2 train.py" if a shell has expanded -H node[1-2] to the names of existing
// files.
Result<void> check_expanded_brackets(const Binder& binder, const Raw& raw,
                                     const std::vector<std::string>& command) {
  if (raw.hosts.size() != 1) return {};
  const std::string& host = raw.hosts.front();
  const auto [stem, first] = cut_at_last_number(host);
  std::error_code ignored;
  if (stem.empty() || first.empty()) return {};
  if (!std::filesystem::exists(host, ignored)) return check_commas(binder, host, command);
  std::string last;
  for (const std::string& word : command) {
    const auto [other_stem, number] = cut_at_last_number(word);
    if (other_stem != stem || number.empty() || !std::filesystem::exists(word, ignored)) break;
    last = number;
  }
  if (last.empty()) return {};
  return usage_error(
      binder.spelling("hosts") + " " + host + " " + command.front() +
          " ...: files of these names exist here, so the shell has expanded a host name with "
          "brackets to them",
      "quote it: " + binder.spelling("hosts") + " '" + stem + "[" + first + "-" + last + "]'");
}

// Notes hosts that are valid but often a mistake.
void note_odd_hosts(const Binder& binder, const Raw& raw, Options& options) {
  std::error_code ignored;
  if (raw.hosts.size() == 1 && !cut_at_last_number(raw.hosts.front()).second.empty() &&
      std::filesystem::is_directory(raw.hosts.front(), ignored))
    options.notes.push_back(
        binder.spelling("hosts") + " " + raw.hosts.front() +
        " is also a directory here: quote names with brackets, or the shell expands "
        "them");
  for (const Host& host : options.hosts) {
    // The usual ports of SSH, which many people write in this position.
    if (host.slots != 22 && host.slots != 2222) continue;
    const std::string number = std::to_string(*host.slots);
    options.notes.push_back(host.name + ":" + number + " means " + number + " workers on " +
                            host.name + "; for a port write " + host.name + ":port=" + number +
                            " or --ssh-port " + number);
    break;
  }
}

// Returns the hostfile in -H: "@f", or an existing path that cannot be a list.
std::string hostfile_in(const std::string& text) {
  if (text.starts_with('@')) return text.substr(1);
  std::error_code ignored;
  const bool looks_like_list = text.find_first_of(",:[") != std::string::npos;
  return !looks_like_list && std::filesystem::is_regular_file(text, ignored) ? text : "";
}

Result<void> resolve_hosts(const Binder& binder, const Raw& raw, const HostfileReader& read,
                           Options& options) {
  std::vector<std::string> sources;
  if (!raw.hosts.empty()) sources.push_back(binder.spelling("hosts"));
  if (!raw.hostfile.empty()) sources.push_back(binder.spelling("hostfile"));
  if (!options.hosts_from.empty()) sources.push_back(binder.spelling("hosts-from"));
  if (raw.fake_hosts > 0) sources.push_back(binder.spelling("fake-hosts"));
  if (sources.empty()) return {};
  if (sources.size() > 1)
    return usage_error(sources[0] + " and " + sources[1] + " both list hosts",
                       "use only one of them");
  options.host_source = sources[0];
  if (!options.hosts_from.empty()) return {};
  if (raw.fake_hosts > 0) {
    options.hosts = fake_hosts(raw.fake_hosts);
    return {};
  }
  std::string path = raw.hostfile;
  if (raw.hosts.size() == 1) path = hostfile_in(raw.hosts.front());
  if (path.empty()) {
    options.hosts = IVY_TRY(parse_host_list(joined(raw.hosts, ","), binder.spelling("hosts")));
    note_odd_hosts(binder, raw, options);
    return {};
  }
  const Result<std::string> content = read(path);
  if (!content.ok()) return content.error().context(sources[0]);
  std::error_code ignored;
  if (std::filesystem::equivalent(path, options.healthy_hostfile, ignored))
    return usage_error(
        binder.spelling("healthy-hostfile") + " would overwrite " + path + ", the hostfile in use",
        "choose another file");
  options.hosts = IVY_TRY(parse_hostfile(content.value(), path));
  options.host_source = "hostfile " + path;
  if (!raw.hosts.empty())
    options.notes.push_back(sources[0] + " " + raw.hosts.front() + " is read as a hostfile");
  return {};
}

Error no_program(const Scanned& scanned) {
  Error error = usage_error("no program given", "ivyrun [flags] program [arguments]");
  if (scanned.settings.empty() || !scanned.settings.back().is_next_word) return error;
  const Setting& last = scanned.settings.back();
  const bool is_file = last.value.ends_with(".py") || last.value.find('/') != std::string::npos;
  if (!is_file) {
    error.fix = "ivyrun " + last.spelling + " " + quoted_arguments({last.value}) + " PROGRAM";
    return error;
  }
  error.fix = last.spelling + " " + std::string(last.entry->value) + " " + last.value;
  error.message += ": " + in_quotes(last.value) + " was taken as the value of " + last.spelling;
  return error;
}

// Notes commands that are often a mistake but may be intended; the job runs.
void note_odd_commands(Options& options) {
  const std::string& program = options.command.front();
  const std::string name = program.substr(program.rfind('/') + 1);
  for (const std::string_view launcher :
       {"torchrun", "mpirun", "mpiexec", "srun", "deepspeed", "accelerate", "horovodrun", "ivyrun"})
    if (name == launcher)
      options.notes.push_back(
          name +
          " is itself a launcher, and every worker would start a separate job with it; "
          "give ivyrun the script instead");
  const bool runs =
      options.command.size() > 1 && options.command[1] == "run" && options.num_proc != 1;
  if (runs && name == "uv")
    options.notes.push_back(
        "every worker runs uv, and all of them check the same environment concurrently; `uv run "
        "ivyrun [flags] PROGRAM` checks it once, and --stage-venv=uv once on each host");
  if (runs && (name == "conda" || name == "mamba" || name == "micromamba"))
    options.notes.push_back(
        "every worker runs " + name +
        ", which takes a second and holds back output; `ivyrun --activate conda:NAME [flags] "
        "PROGRAM` uses the environment directly");
  for (auto word = options.command.begin() + 1; word != options.command.end(); ++word) {
    const std::optional<OptionSpelling> flag = find_option(word->substr(0, word->find('=')));
    const bool is_count = (*word == "-n" || *word == "-np") && word + 1 != options.command.end() &&
                          parse_number(*(word + 1), 1, kMaxWorkers).ok() && name.ends_with(".py") &&
                          !options.num_proc && !hosts_are_named(options);
    const bool is_placement =
        flag && word->starts_with("--") &&
        (flag->entry->name == "nproc-per-node" || flag->entry->name == "nnodes");
    if (!is_placement && !is_count) continue;
    options.notes.push_back(*word +
                            " is passed to the program, because it comes after the program");
    break;
  }
}

// Rejects "-np 2 a : -np 2 b", which describes a job of another shape than the one that would run.
// After "--", and as the last word, a : is an ordinary argument.
Result<void> check_one_program(const Scanned& scanned) {
  if (scanned.is_command_marked) return {};
  const auto colon = std::find(scanned.command.begin(), scanned.command.end(), ":");
  if (colon == scanned.command.end() || colon + 1 == scanned.command.end()) return {};
  return usage_error("several programs in one job (a : b) are not supported",
                     "start a script that reads RANK and runs the program for that rank\n"
                     "if : is an argument of the program, write: ivyrun [flags] -- " +
                         scanned.command.front() + " ...");
}

Result<void> check_module(const Binder& binder, const std::string& module) {
  const bool is_file = module.ends_with(".py") || module.find('/') != std::string::npos;
  if (!is_file) return {};
  std::string name = module.substr(0, module.size() - (module.ends_with(".py") ? 3 : 0));
  std::replace(name.begin(), name.end(), '/', '.');
  return usage_error(binder.spelling("module") + ": " + module + " is a file, not a module",
                     "leave out " + binder.spelling("module") + ", or write the module's name: " +
                         name.substr(std::min(name.find_first_not_of('.'), name.size())));
}

// srun's --export is a single list; ours is one flag per variable.
Result<void> check_exports(const Binder& binder, const Options& options) {
  const std::string spelling = binder.spelling("export");
  for (const std::string& text : options.exports) {
    const std::string name = text.substr(0, text.find('='));
    if (is_env_name(name) && name != "ALL" && name != "NONE" && name != "NIL") continue;
    if (name.ends_with('*') || name.empty()) continue;
    const bool is_srun =
        name == "ALL" || name == "NONE" || name == "NIL" || name.find(',') != std::string::npos;
    if (!is_srun) continue;
    return usage_error(
        spelling + ": \"" + text + "\" is srun's syntax, one list for all variables",
        "use one " + spelling + " for each variable: " + spelling +
            " NAME=VALUE; without it, workers get the variables that frameworks read");
  }
  return {};
}

// Checks the program that wraps the workers' program.
Result<void> check_wrap(const Binder& binder, const Options& options) {
  if (binder.is_given("wrap-ranks") && options.wrap.empty())
    return usage_error(binder.spelling("wrap-ranks") + " needs --wrap COMMAND");
  if (options.wrap_ranks.failed)
    return usage_error(binder.spelling("wrap-ranks") +
                       ": the ranks that will fail are not known in advance");
  return {};
}

Result<void> check_stage(const Binder& binder, const Options& options) {
  for (const char* const flag : {"stage-to", "stage-limit"})
    if (binder.is_typed(flag) && !options.stage)
      return usage_error(binder.spelling(flag) + " needs --stage or --stage=DIR");
  if (options.stage_venv != StageVenv::kNone && options.env_choice == EnvChoice::kNone)
    return usage_error(binder.spelling("stage-venv") + " sets variables for the workers, but " +
                           binder.spelling("env") + " none passes no variables",
                       "use only one of them");
  return {};
}

Result<void> resolve_command(const Binder& binder, const Raw& raw, Options& options) {
  if (options.command.front().empty()) return usage_error("the program name is empty");
  IVY_CHECK(check_wrap(binder, options));
  IVY_CHECK(check_stage(binder, options));
  // The command line counts most: a typed --activate overrides IVY_PYTHON and config files.
  if (binder.is_typed("activate") && !binder.is_typed("python")) options.python.clear();
  if (!options.activate.empty() && options.env_choice == EnvChoice::kNone)
    return usage_error(binder.spelling("activate") + " sets variables for the workers, but " +
                           binder.spelling("env") + " none passes no variables",
                       "use only one of them; --python PATH sets just the interpreter");
  IVY_CHECK(check_exports(binder, options));
  for (const std::string& text : raw.limits) {
    Result<RequestedLimit> limit = parse_limit(text);
    if (!limit.ok()) return limit.error().context(binder.spelling("rlimit"));
    // As for other flags, the last value counts.
    std::erase_if(options.limits,
                  [&](const RequestedLimit& other) { return other.resource == limit->resource; });
    options.limits.push_back(*limit);
  }
  if (raw.is_module) IVY_CHECK(check_module(binder, options.command.front()));
  if (raw.is_module) options.program_kind = ProgramKind::kModule;
  if (raw.no_python) options.program_kind = ProgramKind::kExecutable;
  if (!options.working_directory.empty()) {
    std::filesystem::path path = options.working_directory;
    if (path.is_relative()) path = IVY_TRY(current_directory()) / path;
    options.working_directory = path.lexically_normal();
  }
  note_odd_commands(options);
  return {};
}

// Two flags that contradict each other, with the reason if it is not obvious.
struct Contradiction {
  std::string_view one;
  std::string_view other;
  std::string_view why;
};

constexpr Contradiction kContradictions[] = {
    {"module", "no-python", ""},
    {"show-ranks", "local-ranks-filter", ""},
    {"stall-timeout", "no-store", ": stalls are detected through the store"},
    {"master-port", "port-range", ""},
    {"include", "exclude", ""},
};

Result<void> check_contradictions(const Binder& binder, const Options& options) {
  for (const auto& [one, other, why] : kContradictions) {
    if (!binder.is_given(one) || !binder.is_given(other)) continue;
    // A time of 0 means that the flag is off.
    if (one == "stall-timeout" && options.stall_timeout.count() == 0) continue;
    return usage_error(binder.spelling(one) + " and " + binder.spelling(other) +
                           " cannot be used together" + std::string(why),
                       "use only one of them");
  }
  return {};
}

Result<void> resolve_output(const Binder& binder, Options& options) {
  if (options.show_ranks.failed && (options.detach || options.node_rank))
    return usage_error(binder.spelling("show-ranks") + " failed cannot be used with " +
                           binder.spelling(options.detach ? "detach" : "node-rank"),
                       "use --log-dir DIR to keep the output of every rank");
  if (!options.log_dir.empty()) return {};
  if (options.log_to != LogLocation::kHead)
    return usage_error(binder.spelling("log-to") + " needs --log-dir DIR");
  if (!options.output.empty()) return {};
  if (options.redirects.has_any())
    return usage_error(binder.spelling("redirects") + " needs --log-dir DIR or --output PATTERN");
  if (options.tee.has_any())
    options.notes.push_back(
        binder.spelling("tee") +
        " is ignored without --log-dir DIR (for a time limit use --timeout TIME)");
  return {};
}

Result<void> resolve_fetch(const Binder& binder, const Raw& raw, FetchOptions& options) {
  for (const std::string& text : raw.fetch) {
    Result<FetchRule> rule = parse_fetch(text);
    if (!rule.ok()) return rule.error().context(binder.spelling("fetch"));
    options.fetch.push_back(std::move(*rule));
  }
  if (options.fetch.size() > kMaxFetchRules)
    return usage_error(binder.spelling("fetch") + " was given more than " +
                           std::to_string(kMaxFetchRules) + " times",
                       "use patterns that match more: 'out/**'");
  if (!options.fetch.empty()) return {};
  for (const std::string_view flag : {"fetch-limit", "fetch-timeout"})
    if (binder.is_given(flag)) return usage_error(binder.spelling(flag) + " needs --fetch PATTERN");
  return {};
}

Result<void> resolve_checks(const Binder& binder, const Raw& raw, CheckOptions& options) {
  for (const std::string& check : raw.checks) {
    if (check.find_first_not_of(" \t") == std::string::npos)
      return usage_error(binder.spelling("check") + " needs a command, not an empty text");
    if (check.size() > kMaxCheckBytes)
      return usage_error(binder.spelling("check") + ": the command has more than " +
                             std::to_string(kMaxCheckBytes) + " bytes",
                         "put it into a script that all hosts have");
    if (check.starts_with("unix:") && !check.starts_with("unix:/"))
      return usage_error(binder.spelling("check") + " " + check +
                         ": the path of the socket must be absolute, such as unix:/run/nvhcd.sock");
    if (check == "default")
      options.default_checks = true;
    else
      options.checks.push_back(check);
  }
  if (options.checks.size() > kMaxChecks)
    return usage_error(
        binder.spelling("check") + " was given more than " + std::to_string(kMaxChecks) + " times",
        "combine commands in a script");
  if (options.check_timeout < kShortestCheck)
    return usage_error(binder.spelling("check-timeout") + " must be 1 s or more");
  if (binder.is_given("check-timeout") && !options.wants_gate())
    return usage_error(
        binder.spelling("check-timeout") +
        " needs a check: --check COMMAND, --check default, --expect-gpus N or --check-load");
  if (options.check_load && options.check_timeout < kShortestLoad)
    return usage_error(binder.spelling("check-load") + " measures for 2 s and more: " +
                       binder.spelling("check-timeout") + " must be 10 s or more");
  return {};
}

// In torchrun mode --master-addr and --master-port specify the address of node 0; the workers'
// addresses are chosen automatically.
void take_address_of_node_0(const Binder& binder, Options& options) {
  options.join_address = std::exchange(options.master_addr, "");
  if (!binder.is_given("master-port") || options.port_low == 0) return;
  options.join_port = options.port_low;
  options.port_low = options.port_high = 0;
}

std::string command_text(const Raw& raw, const Options& options) {
  return (raw.is_module   ? "-m "
          : raw.no_python ? "--no-python "
                          : "") +
         quoted_arguments(options.command);
}

// Flags for a single ivyrun that starts every host; they conflict with one ivyrun started on each
// host.
struct JoinConflict {
  std::string_view flag;
  const char* why;
  const char* fix;
};
constexpr JoinConflict kJoinConflicts[] = {
    {"num-proc", "each node starts its own workers",
     "use --nproc-per-node N on every node, for N workers on each"},
    {"transport", "the nodes connect to node 0 themselves", "leave it out"},
    {"exec", "the nodes connect to node 0 themselves", "leave it out"},
    {"detach", "whatever started the nodes waits for ivyrun on each of them",
     "leave it out; to survive a closed terminal, run `nohup ivyrun ... &` on every node"},
    {"stop-before-end", "only whatever started the nodes knows their time limit",
     "let it send TERM shortly before, which stops the workers of all nodes (Slurm: "
     "srun --signal=TERM@120)"},
    {"requeue", "whatever started the nodes has to start them again",
     "let it do so when ivyrun's exit code is not 0 (Kubernetes: restartPolicy)"},
    {"include", "the nodes are the hosts on which ivyrun is started",
     "start it only on the hosts that you want"},
    {"exclude", "the nodes are the hosts on which ivyrun is started",
     "start it only on the hosts that you want"},
    {"spares", "the ranks of a node belong to the ivyrun that was started there",
     "use --nnodes MIN:MAX, which continues without nodes that are lost"},
    {"pick", "the nodes are the hosts on which ivyrun is started", "leave it out"},
    {"grow", "node 0 cannot start ivyrun on the other nodes",
     "leave it out; the job continues without nodes that are lost"},
};

Result<void> check_join_conflicts(const Binder& binder, const Options& options,
                                  const std::string& node_rank) {
  for (const JoinConflict& other : kJoinConflicts)
    if (binder.is_given(other.flag) && !(options.in_pod && other.flag == "stop-before-end"))
      return usage_error(
          binder.spelling(other.flag) + " cannot be used with " + node_rank + ": " + other.why,
          std::string(other.fix) + ",\nor name all hosts with -H and start one ivyrun");
  return {};
}

// Explains why torchrun mode cannot be meant, or which flag conflicts with it.
Result<void> check_join(const Binder& binder, const Raw& raw, const Options& options) {
  const std::string spelling =
      binder.is_given("node-rank") ? binder.spelling("node-rank") : "JOB_COMPLETION_INDEX";
  const std::string rank = std::to_string(*raw.node_rank);
  const int nodes = options.num_nodes.value_or(1);
  if (hosts_are_named(options) || nodes == 1)
    return usage_error(
        "ivyrun is started only once, not on every host, unless " + spelling + " " + rank +
            " is used with --nnodes N and without -H",
        "run on one host: ivyrun -H host0,host1 ... with all hosts in rank order, or\n"
        "on every host: ivyrun --nnodes N --node-rank R --master-addr HOST0 ...");
  if (*raw.node_rank >= nodes)
    return usage_error(spelling + " " + rank + ", but " + binder.spelling("nnodes") + " " +
                           std::to_string(nodes) + " has nodes 0 to " + std::to_string(nodes - 1),
                       "number the nodes from 0");
  if (*raw.node_rank > 0 && options.master_addr.empty())
    return usage_error(spelling + " " + rank + " needs the address of node 0",
                       "add --master-addr HOST0, the name or an address of node 0's host");
  return check_join_conflicts(binder, options, spelling);
}

// Takes the rank of this node and the address of node 0 from the pod of an Indexed Job, if its pods
// are to be one job.
Result<void> take_pod(const IndexedPod& pod, Raw& raw, Options& options) {
  const bool is_single = options.num_nodes == 1 || options.transport == TransportChoice::kLocal;
  if (raw.node_rank || is_single || options.doctor || hosts_are_named(options)) return {};
  const std::string index = std::to_string(pod.index);
  if (!options.num_nodes) {
    // Without a service, the pods of an Indexed Job cannot find each other, and each works alone.
    if (pod.own_name.empty()) return {};
    return usage_error(
        "this is pod " + index + " of an Indexed Job whose pods have names (" + pod.own_name +
            "), but ivyrun does not know how many pods there are and would start a job in this one "
            "alone",
        "use --nnodes N, or the variable IVY_NNODES in the pod template, with the Job's "
        "`completions`\n"
        "or, for a separate job in each pod: --nnodes 1");
  }
  raw.node_rank = pod.index;
  if (!options.master_addr.empty()) return {};
  if (pod.first_name.empty())
    return usage_error("JOB_COMPLETION_INDEX makes this pod node " + index + " of " +
                           std::to_string(*options.num_nodes) +
                           ", but the name of node 0 is not known: " + pod.why_unknown,
                       "set `subdomain` in the pod template to the name of a headless service, "
                       "without hostNetwork\n"
                       "or give the address of the pod with index 0: --master-addr ADDRESS");
  options.master_addr = pod.first_name;
  return {};
}

// torchrun mode: --node-rank with a number of nodes but without a list of hosts.
Result<void> resolve_join(const Binder& binder, const Raw& raw, Options& options) {
  const bool is_join =
      raw.node_rank && !hosts_are_named(options) && options.num_nodes.value_or(1) > 1;
  const auto without_effect = [&](std::string_view flag, const std::string& why) {
    if (binder.is_given(flag))
      options.notes.push_back(binder.spelling(flag) + " is ignored: " + why);
  };
  without_effect("rdzv-endpoint", "ivyrun chooses address and port");
  if (!is_join) {
    if (raw.node_rank.value_or(0) > 0) return check_join(binder, raw, options);
    without_effect("rdzv-backend", "one ivyrun starts all hosts and assigns the ranks");
    without_effect("node-rank", "one ivyrun starts all hosts");
    without_effect("rdzv-id", "every job has its own id");
    without_effect("join-secret-file", "it applies only to nodes that join with --node-rank");
    return {};
  }
  IVY_CHECK(check_join(binder, raw, options));
  options.node_rank = raw.node_rank;
  options.join_terms = {
      {"--nnodes", std::to_string(options.min_nodes.value_or(*options.num_nodes)) + ":" +
                       std::to_string(*options.num_nodes)},
      {"--nproc-per-node", raw.per_host_text},
      {"program", command_text(raw, options)}};
  take_address_of_node_0(binder, options);
  return {};
}

// --exec without --transport, or with --transport exec.
Result<void> resolve_exec(const Binder& binder, const Raw& raw, Options& options) {
  if (!binder.is_given("exec")) {
    if (options.transport != TransportChoice::kExec || !options.exec_command.empty()) return {};
    return usage_error(binder.spelling("transport") + " exec needs --exec COMMAND",
                       "--exec 'kubectl exec -i {host} -c trainer --', for example");
  }
  if (binder.is_given("transport") && raw.transport != transport_name(TransportChoice::kExec))
    return usage_error(binder.spelling("exec") + " and " + binder.spelling("transport") + " " +
                           raw.transport + " cannot be used together",
                       "use only one of them");
  options.transport = TransportChoice::kExec;
  options.exec_command = raw.exec;
  return {};
}

Result<void> resolve_container(const Binder& binder, const Raw& raw, Options& options) {
  if (options.container.empty()) {
    for (const std::string_view flag : {"container-runtime", "container-mount", "container-args"})
      if (binder.is_given(flag))
        return usage_error(binder.spelling(flag) + " needs --container IMAGE");
    return {};
  }
  for (const std::string& text : raw.container_mounts)
    options.container_mounts.push_back(IVY_TRY(parse_container_mount(text)));
  // The service runs outside, with a Python of the host.
  if (options.app == App::kJaxService)
    return usage_error("--app jax-service cannot be used with --container",
                       "leave one of them out");
  // Hosts may have to pull the image.
  constexpr std::chrono::minutes kPullTimeout{30};
  if (!binder.is_given("start-timeout")) options.start_timeout = kPullTimeout;
  return {};
}

// Rejects flags that conflict with a range of hosts.
Result<void> resolve_node_range(const Binder& binder, const Options& options) {
  if (!options.min_nodes) return {};
  if (options.num_proc)
    return usage_error(binder.spelling("num-proc") + " fixes the number of ranks, but " +
                           binder.spelling("nnodes") + " MIN:MAX makes it depend on the hosts",
                       "use --nproc-per-node N, the number of workers on each host");
  if (options.detach && options.lease)
    return usage_error(
        binder.spelling("lease") + " with " + binder.spelling("detach") +
            " lets another launcher take over the job, which would not know which hosts "
            "remain of " +
            binder.spelling("nnodes") + " MIN:MAX",
        "leave " + binder.spelling("lease") + " out, or give a single number of hosts");
  // Without -H, the hosts come from --hosts-from or an allocation; main checks them.
  if (options.node_rank || options.hosts.empty()) return {};
  return check_min_hosts(options, binder.spelling("nnodes"));
}

// Rejects flags that conflict with spare hosts.
Result<void> resolve_spares(const Binder& binder, const Options& options) {
  if (options.pick == PickChoice::kHealthiest && !options.num_nodes)
    return usage_error(binder.spelling("pick") + " healthiest needs " + binder.spelling("nnodes") +
                           " N, the number of hosts that get ranks",
                       "the hosts beyond it are spares");
  if (options.pick == PickChoice::kHealthiest && binder.is_given("spares"))
    return usage_error(binder.spelling("pick") + " healthiest and " + binder.spelling("spares") +
                           " cannot be used together",
                       "with --pick healthiest, all hosts beyond --nnodes are spares");
  const std::string spelling =
      options.spares > 0 ? binder.spelling("spares") : binder.spelling("pick") + " healthiest";
  if (options.spares == 0 && options.pick == PickChoice::kFirst) return {};
  if (options.on_failure == OnFailure::kShrink)
    return usage_error(spelling + " cannot be used with " + binder.spelling("on-failure") +
                           " shrink, which never replaces a lost host",
                       "use --on-failure replace, or leave it out");
  if (options.detach && options.lease)
    return usage_error(
        binder.spelling("lease") + " with " + binder.spelling("detach") +
            " lets another launcher take over the job, which would not know what the "
            "spare hosts have answered",
        "leave " + binder.spelling("lease") + " or " + spelling + " out");
  return {};
}

// Rejects flags that conflict with hosts that join later.
Result<void> resolve_growth(const Binder& binder, const Options& options) {
  if (!options.grow) return {};
  const std::string spelling = binder.spelling("grow");
  if (options.grow->count() == 0) return usage_error(spelling + " needs a time, such as 10m");
  if (!options.min_nodes)
    return usage_error(spelling + " needs " + binder.spelling("nnodes") +
                           " MIN:MAX: a job with a fixed number of workers or hosts cannot grow",
                       "such as --nnodes 2:4, with --nproc-per-node N for N workers on each host");
  if (options.stage)
    return usage_error(spelling + " cannot be used with " + binder.spelling("stage") +
                           ": hosts that come later would lack the files",
                       "use a shared file system, or leave one of them out");
  return {};
}

// Rejects flags that choose among restarts if the group is never restarted.
Result<void> require_restarts(const Binder& binder, const Options& options) {
  for (const char* flag :
       {"restart-on", "never-restart", "condemn-on", "progress-match", "progress-file"}) {
    if (!binder.is_given(flag)) continue;
    if (options.on_failure != OnFailure::kRestart)
      return usage_error(
          binder.spelling(flag) +
              " is for restarts of all workers; --on-failure shrink and replace keep "
              "the others running",
          "leave one of them out");
    if (options.max_restarts == 0 && !options.min_nodes && options.spares == 0 &&
        options.pick == PickChoice::kFirst)
      return usage_error(binder.spelling(flag) + " needs --max-restarts N",
                         "such as --max-restarts 3");
  }
  return {};
}

// Rejects flags that conflict with `--on-failure shrink` or `replace`.
Result<void> resolve_failure_flags(const Binder& binder, Options& options) {
  if (options.on_stall == OnStall::kStop && options.stall_timeout.count() == 0)
    return usage_error(binder.spelling("on-stall") + " stop needs --stall-timeout TIME",
                       "such as --stall-timeout 10m, the longest time without progress");
  if (binder.is_given("min-workers") && options.on_failure != OnFailure::kShrink)
    return usage_error(binder.spelling("min-workers") + " needs --on-failure shrink");
  IVY_CHECK(require_restarts(binder, options));
  if (options.on_failure == OnFailure::kRestart) return {};
  const std::string spelling = binder.spelling("on-failure") +
                               (options.on_failure == OnFailure::kShrink ? " shrink" : " replace");
  if (options.profile == Profile::kMpi)
    return usage_error(spelling + " cannot be used with -B mpi: an MPI world cannot lose a rank",
                       "leave it out; --max-restarts N starts all ranks again");
  if (options.node_rank)
    return usage_error(spelling + " cannot be used with " + binder.spelling("node-rank") +
                           ": every node has its own ivyrun",
                       "name all hosts with -H and start one ivyrun");
  if (options.min_nodes)
    return usage_error(spelling + " cannot be used with " + binder.spelling("nnodes") +
                           " MIN:MAX, which starts all workers again when a host is lost",
                       "give a single number of hosts");
  if (options.detach && options.lease)
    return usage_error(binder.spelling("lease") + " with " + binder.spelling("detach") +
                           " lets another launcher take over the job, which would not know of " +
                           spelling,
                       "leave " + binder.spelling("lease") + " out");
  if (options.on_failure == OnFailure::kShrink) return {};
  if (binder.is_given("max-restarts") && options.max_restarts == 0)
    return usage_error(spelling + " and " + binder.spelling("max-restarts") +
                           " 0 cannot be used together: no worker could be replaced",
                       "--on-failure shrink continues without the lost worker");
  options.max_replacements =
      binder.is_given("max-restarts") ? options.max_restarts : kDefaultReplacements;
  // With --on-failure replace, all workers are never restarted together.
  options.max_restarts = 0;
  return {};
}

Result<void> resolve_devices(const Binder& binder, const DeviceOptions& options) {
  for (const std::string& name : options.device_env) {
    if (!is_env_name(name))
      return usage_error(binder.spelling("device-env") + ": \"" + name +
                         "\" is not a valid variable name");
    if (env_rule(name) == EnvRule::kSet)
      return usage_error(binder.spelling("device-env") + ": " + name +
                         " is set by ivyrun for every worker");
  }
  return {};
}

// "default" is torchrun's name of the only role if no others are defined.
Result<void> take_roles(const Binder& binder, const Raw& raw, Options& options) {
  std::vector<AppRole> roles;
  for (const std::string& text : raw.roles)
    if (text != "default") roles.push_back(IVY_TRY(parse_role(text)));
  if (roles.empty()) return {};
  if (options.app != App::kNone)
    return usage_error(binder.spelling("role") + " and " + binder.spelling("app") +
                           " both define the servers that run next to the program",
                       "use only one of them");
  options.app = App::kRoles;
  options.app_spec = app_of_roles(std::move(roles));
  return {};
}

// Model servers: without --app-args the command line contains the server's arguments, and there is
// no client.
void take_served_arguments(const Binder& binder, Options& options) {
  if (!options.app_spec.serves_arguments || binder.is_given("app-args")) return;
  options.app_args = std::exchange(options.command, {options.app_spec.name});
  options.app_spec.client = AppClient::kNone;
  // A name that is not looked up on the hosts; the roles only need the interpreter.
  options.program_kind = ProgramKind::kModule;
}

Result<void> check_app(const Binder& binder, const Options& options) {
  const std::string spelling = binder.spelling(binder.is_given("app") ? "app" : "role");
  for (const std::string_view other : {"no-store", "on-failure", "node-rank", "stall-timeout"})
    if (binder.is_given(other))
      return usage_error(
          binder.spelling(other) + " cannot be used with " + spelling +
              ": its hosts rendezvous through the job's store, and all its roles exit together",
          "leave it out; --max-restarts N starts all roles again");
  if (options.profile == Profile::kMpi)
    return usage_error(spelling + " cannot be used with -B mpi", "use only one of them");
  if (options.app_spec.client == AppClient::kEvery || !options.num_proc) return {};
  return usage_error(binder.spelling("num-proc") + " cannot be used with " + spelling +
                         ": one program uses the servers of all hosts",
                     "use --nproc-per-node N if the app has workers on each host");
}

// Returns true if the job needs --app jax-service: a restarted rank of JAX can rejoin only through
// a service that has outlived it.
bool needs_jax_service(const Raw& raw, const Options& options) {
  const bool is_python = raw.is_module || options.command.front().ends_with(".py");
  return is_python && options.app == App::kNone && options.profile == Profile::kJax &&
         !options.no_python_hook && options.on_failure == OnFailure::kReplace;
}

Result<void> resolve_app(const Binder& binder, const Raw& raw, Options& options) {
  IVY_CHECK(take_roles(binder, raw, options));
  if (!options.tf_roles.empty() && options.profile != Profile::kTensorflow)
    return usage_error(binder.spelling("tf-roles") + " needs -B tensorflow");
  if (needs_jax_service(raw, options)) options.app = App::kJaxService;
  if (options.app != App::kRoles) {
    if (!options.app_args.empty())
      return usage_error(binder.spelling("app-args") + " needs --app NAME");
    return {};
  }
  IVY_CHECK(check_app(binder, options));
  take_served_arguments(binder, options);
  if (options.app_spec.client == AppClient::kEvery) return {};
  // One rank per host starts the app's processes there; the app distributes the rest.
  if (options.per_host.kind == PerHost::Kind::kNumber)
    options.app_workers = options.per_host.number;
  options.per_host = PerHost{PerHost::Kind::kNumber, 1, true};
  return {};
}

// A host that does not come up is a finding of --doctor, so it is not awaited for as long as by a
// job.
Result<void> resolve_doctor(const Binder& binder, Options& options) {
  if (!options.doctor) {
    for (const std::string_view flag : {"check-module", "healthy-hostfile"})
      if (binder.is_given(flag)) return usage_error(binder.spelling(flag) + " needs --doctor");
    return {};
  }
  for (const std::string_view other : {"node-rank", "detach", "explain-env", "on-failure"})
    if (binder.is_given(other))
      return usage_error(
          binder.spelling("doctor") + " cannot be used with " + binder.spelling(other),
          "leave it out");
  if (!binder.is_given("start-timeout")) options.start_timeout = kDoctorTimeout;
  return {};
}

// --drill must be typed, so that a forgotten file never injects faults.
Result<void> resolve_drill(const Binder& binder, const Raw& raw, Options& options) {
  if (raw.drill.empty()) return {};
  const std::string spelling = binder.spelling("drill");
  if (!binder.is_typed("drill"))
    return usage_error(spelling + " injects faults, so it must be typed in the command line",
                       "remove it from the config file or the environment");
  for (const std::string& text : raw.drill) {
    Result<DrillRule> rule = parse_drill(text);
    if (!rule.ok()) return rule.error().context(spelling + " '" + text + "'");
    options.drill.push_back(std::move(*rule));
  }
  if (options.drill.size() > kMaxDrillRules)
    return usage_error(spelling + " was given more than " + std::to_string(kMaxDrillRules) +
                       " times");
  for (const std::string_view flag : {"detach", "node-rank"})
    if (binder.is_given(flag) && (flag == "detach" || options.node_rank))
      return usage_error(spelling + " and " + binder.spelling(flag) + " cannot be used together",
                         "name all hosts with -H, and let the drill run in the foreground");
  const DrillRule* holder = nullptr;
  for (const DrillRule& rule : options.drill) {
    if (!rule.has(Fault::kHoldGil)) continue;
    if (options.no_python_hook)
      return usage_error(spelling + " hold-gil needs ivyrun's Python hook",
                         "leave " + binder.spelling("no-python-hook") + " out");
    if (holder != nullptr && holder->lasts != rule.lasts)
      return usage_error(spelling + ": all hold-gil faults need the same for=TIME");
    holder = &rule;
  }
  return {};
}

// Settles values that depend on several flags, or on the program.
Result<void> settle(const Binder& binder, Raw& raw, const HostfileReader& read, const PodFacts& pod,
                    Options& options) {
  options.in_pod = pod.is_main_program;
  IVY_CHECK(resolve_app(binder, raw, options));
  IVY_CHECK(resolve_command(binder, raw, options));
  IVY_CHECK(resolve_hosts(binder, raw, read, options));
  if (pod.indexed) IVY_CHECK(take_pod(*pod.indexed, raw, options));
  IVY_CHECK(resolve_exec(binder, raw, options));
  IVY_CHECK(resolve_container(binder, raw, options));
  IVY_CHECK(resolve_join(binder, raw, options));
  IVY_CHECK(resolve_node_range(binder, options));
  IVY_CHECK(resolve_spares(binder, options));
  IVY_CHECK(resolve_growth(binder, options));
  IVY_CHECK(resolve_failure_flags(binder, options));
  IVY_CHECK(resolve_output(binder, options));
  IVY_CHECK(resolve_fetch(binder, raw, options));
  IVY_CHECK(resolve_checks(binder, raw, options));
  IVY_CHECK(resolve_devices(binder, options));
  IVY_CHECK(resolve_drill(binder, raw, options));
  IVY_CHECK(resolve_doctor(binder, options));
  options.dry_run = options.dry_run || options.explain_env || options.doctor;
  return {};
}

// "--help=output" must name a topic. In "--help output" the word may also be a program, which is
// not started.
Result<std::string> wanted_help(const Scanned& scanned) {
  for (const Setting& setting : scanned.settings)
    if (setting.entry->name == "help" && setting.value != "true") return help_about(setting.value);
  if (!scanned.command.empty()) {
    const Result<std::string> about = help_about(scanned.command.front());
    if (about.ok()) return about;
  }
  return help_about("");
}

Result<void> resolve_transports(const Policy& policy, Options& options) {
  if (!policy.transports) return {};
  const std::string allowed =
      "it allows " +
      (policy.transports->empty() ? "no other hosts" : joined(*policy.transports, ", "));
  if (options.node_rank && !policy.allows("join"))
    return forbidden(policy, "forbids --node-rank", allowed);
  const std::string word = transport_name(options.transport);
  if (needs_permission(options.transport) && !policy.allows(word))
    return forbidden(policy, "forbids --transport " + word, allowed);
  options.no_ssh = !policy.allows("ssh");
  options.no_agents = !policy.allows("agent");
  options.no_slurm = !policy.allows("slurm");
  return {};
}

Result<void> resolve_interface(const Policy& policy, Options& options) {
  if (policy.interfaces.empty()) return {};
  if (options.interface.empty()) options.interface = policy.interfaces.front();
  if (std::find(policy.interfaces.begin(), policy.interfaces.end(), options.interface) !=
      policy.interfaces.end())
    return {};
  return forbidden(policy, "forbids --iface " + options.interface,
                   "it allows " + joined(policy.interfaces, ", "));
}

Result<void> resolve_ports(const Policy& policy, Options& options) {
  if (!policy.ports) return {};
  const auto is_inside = [&](int port) {
    return port >= policy.ports->first && port <= policy.ports->second;
  };
  if (options.port_low == 0) std::tie(options.port_low, options.port_high) = *policy.ports;
  const std::string allowed = "it allows " + std::to_string(policy.ports->first) + "-" +
                              std::to_string(policy.ports->second);
  if (!is_inside(options.port_low) || !is_inside(options.port_high))
    return forbidden(policy, "forbids port " + std::to_string(options.port_low), allowed);
  if (options.node_rank && !is_inside(options.join_port))
    return forbidden(policy, "forbids port " + std::to_string(options.join_port),
                     allowed + ": choose one with --master-port PORT");
  return {};
}

std::string version_text(const Options& options) {
  std::string text = "ivyrun " + std::string(version());
  if (options.verbose > 0) text += " (build " + std::string(build_name()) + ")";
  return text + "\n";
}

bool asks_for(const Scanned& scanned, std::string_view name) {
  return std::any_of(scanned.settings.begin(), scanned.settings.end(),
                     [&](const Setting& setting) { return setting.entry->name == name; });
}

// Takes the program and its arguments, if they do not conflict with the flags.
Result<void> resolve_program(const Binder& binder, Scanned& scanned, Raw& raw, Options& options) {
  if (scanned.command.empty() && options.doctor) {
    // Searches for the interpreter as for any module.
    scanned.command = {"site"};
    raw.is_module = true;
  }
  if (scanned.command.empty()) return no_program(scanned);
  IVY_CHECK(check_contradictions(binder, options));
  IVY_CHECK(check_one_program(scanned));
  if (!scanned.is_command_marked) IVY_CHECK(check_expanded_brackets(binder, raw, scanned.command));
  options.command = std::move(scanned.command);
  return {};
}

}  // namespace

bool hosts_are_named(const HostOptions& options) {
  return !options.hosts.empty() || !options.hosts_from.empty();
}

Result<void> check_min_hosts(const Options& options, const std::string& nnodes) {
  const int given = std::max<int>(1, static_cast<int>(options.hosts.size()));
  if (options.min_nodes.value_or(1) <= given) return {};
  return usage_error(nnodes + " needs " + std::to_string(*options.min_nodes) +
                         " hosts at least, but " + std::to_string(given) +
                         (given == 1 ? " was given" : " were given"),
                     "name the hosts: -H host1,host2,...\n"
                     "or start one ivyrun on each: --node-rank R --master-addr HOST0");
}

Result<void> cut_to_nodes(Options& options) {
  std::vector<Host>& hosts = options.hosts;
  // --doctor examines all hosts alike.
  if (options.doctor) options.spares = 0;
  const auto spares = static_cast<std::size_t>(options.spares);
  if (spares >= hosts.size() && spares > 0)
    return usage_error("--spares " + std::to_string(spares) + " needs " +
                           std::to_string(spares + 1) + " hosts at least, but only " +
                           std::to_string(hosts.size()) +
                           (hosts.size() == 1 ? " was given" : " were given"),
                       "name more hosts, or use fewer spares");
  if (!options.num_nodes) return {};
  const auto nodes = static_cast<std::size_t>(*options.num_nodes);
  const auto least = static_cast<std::size_t>(options.min_nodes.value_or(*options.num_nodes));
  if (spares > 0 && hosts.size() < least + spares)
    return usage_error("--nnodes " + std::to_string(least) + (options.min_nodes ? ":MAX" : "") +
                           " with --spares " + std::to_string(spares) + " needs " +
                           std::to_string(least + spares) + " hosts, but only " +
                           std::to_string(hosts.size()) + " were given",
                       "name more hosts, or use fewer spares");
  if (hosts.size() <= nodes) return {};
  if (options.pick == PickChoice::kHealthiest && !options.doctor)
    options.spares = static_cast<int>(hosts.size() - nodes);
  else
    hosts.resize(std::min(hosts.size(), nodes + spares));
  return {};
}

Result<std::string> read_hostfile(const std::string& name) {
  const std::string path = name == "-" ? "/dev/stdin" : name;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return usage_error(path + " is a directory, not a hostfile");
  // One byte more than allowed, so that the parser can report that the text is too long.
  std::optional<std::string> content = read_file(path, kMaxHostListBytes + 1);
  if (!content) return errno_error(Code::kInvalidArgument, "cannot read " + path, errno);
  return *std::move(content);
}

Result<void> apply_policy(const Policy& policy, const Scanned& scanned, Options& options) {
  IVY_CHECK(check_flags(policy, scanned));
  IVY_CHECK(resolve_transports(policy, options));
  IVY_CHECK(resolve_interface(policy, options));
  return resolve_ports(policy, options);
}

Result<void> add_all_defaults(const Environment& environment, Scanned& scanned) {
  IVY_CHECK(add_defaults(environment, scanned));
  return add_config_files(config_paths(environment), scanned);
}

Result<ParsedCommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                             const Environment& environment,
                                             const HostfileReader& read, const PodFacts& pod) {
  ParsedCommandLine parsed;
  if (arguments.empty() || arguments.front() == "--generate") {
    parsed.text_to_print =
        arguments.empty() ? short_help() : IVY_TRY(generated_text(arguments.back()));
    parsed.exit_code = arguments.empty() ? kExitUsage : 0;
    return parsed;
  }
  if (arguments.front() == "--complete") {
    parsed.text_to_print =
        completions(ivyrun_page(), {arguments.begin() + 1, arguments.end()}) + "\n";
    return parsed;
  }
  Options& options = parsed.options;
  Scanned scanned = IVY_TRY(scan_command_line(arguments));
  if (asks_for(scanned, "help")) {
    parsed.text_to_print = IVY_TRY(wanted_help(scanned));
    return parsed;
  }
  IVY_CHECK(drop_flags_without_effect(scanned, options.notes));
  if (!asks_for(scanned, "version")) {
    IVY_CHECK(add_all_defaults(environment, scanned));
    note_unknown_variables(environment, options.notes);
    IVY_CHECK(drop_flags_without_effect(scanned, options.notes));
  }
  Raw raw;
  raw.app_directories = app_directories(environment);
  Binder binder(scanned);
  bind_all(binder, scanned, options, raw);
  IVY_CHECK(binder.run());
  if (raw.dedup) options.dedup = true;
  for (const SwitchedOff& off : scanned.switched_off)
    if (off.entry->name == "dedup" && !options.dedup) options.dedup = false;
  if (raw.wants_version) {
    parsed.text_to_print = version_text(options);
    return parsed;
  }
  IVY_CHECK(resolve_program(binder, scanned, raw, options));
  IVY_CHECK(settle(binder, raw, read, pod, options));
  if (const auto policy = IVY_TRY(read_policy(config_paths(environment).policy)))
    IVY_CHECK(apply_policy(*policy, scanned, options));
  return parsed;
}

}  // namespace ivy
