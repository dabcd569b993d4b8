// SPDX-License-Identifier: Apache-2.0
// find_problems() calls one check_*() per subject for each host, then compares the properties that
// should be equal on all hosts (shared_properties()). findings_text() and findings_object() format
// the findings as a table and as JSON.
#include "launcher/report/host_findings.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <string_view>

#include "launcher/report/missing_module.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"

namespace ivy {
namespace {

constexpr std::uint64_t kMebibyte = 1u << 20;
constexpr std::uint64_t kGibibyte = 1u << 30;
constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
// A larger difference breaks certificates and makes logs hard to compare.
constexpr std::int64_t kMaxClockMs = 1'000;
// With less free disk space, a job cannot even write its first log.
constexpr std::uint64_t kMinFreeDisk = 64 * kMebibyte;
// Checkpoints need more than this.
constexpr std::uint64_t kAdvisedFreeDisk = kGibibyte;
// Containers get 64 MiB of /dev/shm by default; data loaders and ivycomm's segments need more.
constexpr std::uint64_t kAdvisedFreeShared = 512 * kMebibyte;
// RDMA and pinned GPU memory have to lock this much memory.
constexpr std::uint64_t kAdvisedLockedLimit = kGibibyte;
constexpr std::uint64_t kAdvisedFilesLimit = 4'096;

// A special value of a process's limit means unlimited.
std::string limit_text(std::uint64_t bytes) {
  return bytes == kUnlimited ? "unlimited" : size_text(bytes);
}

std::string seconds_of(std::int64_t milliseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f s", static_cast<double>(milliseconds) / 1e3);
  return text;
}

class Findings {
 public:
  void add(const std::vector<std::string>& hosts, Finding finding) {
    const auto same = std::find_if(all_.begin(), all_.end(), [&](const Finding& other) {
      return other.check == finding.check && other.what == finding.what &&
             other.has_failed == finding.has_failed;
    });
    if (same == all_.end()) {
      finding.hosts = hosts;
      all_.push_back(std::move(finding));
    } else {
      same->hosts.insert(same->hosts.end(), hosts.begin(), hosts.end());
    }
  }
  void fail(const ExaminedHost& host, const char* check, std::string what, std::string fix) {
    add({host.name}, {true, check, std::move(what), std::move(fix), {}});
  }
  void warn(const ExaminedHost& host, const char* check, std::string what, std::string fix) {
    add({host.name}, {false, check, std::move(what), std::move(fix), {}});
  }
  std::vector<Finding> take() {
    std::stable_sort(all_.begin(), all_.end(), [](const Finding& one, const Finding& other) {
      return one.has_failed && !other.has_failed;
    });
    return std::move(all_);
  }

 private:
  std::vector<Finding> all_;
};

void check_reach(const ExaminedHost& host, Findings& findings) {
  const std::string step = host.step.empty() ? "" : host.step + ": ";
  findings.fail(host, host.is_about_ports ? "ports" : "reach", step + host.failure.line(),
                host.fix.empty() ? "use -v to see each step of the connection" : host.fix);
}

void check_clock(const ExaminedHost& host, Findings& findings) {
  if (std::abs(host.clock_ms) <= kMaxClockMs + host.clock_error_ms) return;
  findings.warn(host, "clock", "its clock differs from this host's by " + seconds_of(host.clock_ms),
                "start chrony or systemd-timesyncd there (timedatectl shows what runs)");
}

void check_space(const ExaminedHost& host, Findings& findings) {
  const HostCheckup& health = host.facts.health();
  const std::string& error = host.facts.working_directory_error();
  if (!error.empty()) {
    findings.fail(host, "disk", "working directory: " + RemoteText(error).line(),
                  "create it there, or choose another: --wdir DIR");
  } else if (health.disk_error().empty() && health.disk_free() < kAdvisedFreeDisk) {
    findings.add({host.name},
                 {health.disk_free() < kMinFreeDisk,
                  "disk",
                  "only " + size_text(health.disk_free()) + " are free in the working directory",
                  "free some space there, or choose another directory: --wdir DIR",
                  {}});
  }
  if (health.shared_size() == 0)
    findings.fail(host, "shm", "/dev/shm does not exist", "mount -t tmpfs tmpfs /dev/shm");
  else if (health.shared_free() < kAdvisedFreeShared)
    findings.warn(host, "shm",
                  "only " + size_text(health.shared_free()) + " of " +
                      size_text(health.shared_size()) + " are free in /dev/shm",
                  "delete leftover files there; in a container use --shm-size=8g");
}

bool has_fast_network(const HostFacts& facts) {
  return std::any_of(facts.addresses().begin(), facts.addresses().end(),
                     [](const Address& address) { return address.interface().starts_with("ib"); });
}

void check_limits(const ExaminedHost& host, Findings& findings) {
  const HostCheckup& health = host.facts.health();
  const bool locks = host.facts.accelerators() > 0 || has_fast_network(host.facts);
  if (locks && health.locked_limit() < kAdvisedLockedLimit)
    findings.warn(
        host, "memlock", "only " + limit_text(health.locked_limit()) + " of memory may be locked",
        "\"* - memlock unlimited\" in /etc/security/limits.conf, or LimitMEMLOCK=infinity "
        "of ivy-agent.service or slurmd.service");
  if (health.files_limit() < kAdvisedFilesLimit)
    findings.warn(host, "nofile",
                  "only " + std::to_string(health.files_limit()) + " open files are allowed",
                  "\"* hard nofile 65536\" in /etc/security/limits.conf");
}

void check_python(const ExaminedHost& host, const std::string& module, Findings& findings) {
  const HostCheckup& health = host.facts.health();
  const std::string& error = host.facts.interpreter_error();
  if (!error.empty())
    findings.warn(host, "python", RemoteText(error).line(), "choose another: --python PATH");
  if (module.empty() || !error.empty() || !health.module_version().empty()) return;
  findings.fail(host, "module", module + ": " + RemoteText(health.module_error()).line(),
                install_advice(module, RemoteText(host.facts.interpreter()).line()));
}

// Returns the tool of the host's vendor. A host whose accelerators are all unusable reports no
// vendor; then returns all tools.
std::string device_tool(const HostFacts& facts) {
  const DeviceVendor* const vendor = find_device_vendor(facts.accelerator_source());
  if (vendor != nullptr) return std::string(vendor->tool);
  std::vector<std::string_view> tools;
  for (const DeviceVendor& each : device_vendors()) tools.push_back(each.tool);
  return joined(tools, " or ");
}

void check_devices(const ExaminedHost& host, Findings& findings) {
  for (const std::string& note : host.facts.device_view().notes())
    findings.warn(host, "gpu", RemoteText(note).line(),
                  "run " + device_tool(host.facts) + " there for details");
}

void check_cgroup(const ExaminedHost& host, Findings& findings) {
  // job.proto defines the first words of this field.
  if (!host.facts.containment().starts_with("process tree")) return;
  findings.warn(host, "cgroup",
                "no writable cgroup: stray processes are tracked by environment variable instead",
                "use an ivy-agent there, or a login with Delegate=yes (docs/agents.md)");
}

// A property that should be the same on all hosts.
struct SharedProperty {
  const char* check;
  const char* noun;
  std::function<std::string(const ExaminedHost&)> value;
  const char* fix;
};

std::vector<SharedProperty> shared_properties() {
  return {
      {"architecture", "architecture",
       [](const ExaminedHost& host) { return host.facts.architecture(); },
       "use hosts of one architecture, or a program and a Python that exist for each "
       "(docs/arm.md)"},
      {"glibc", "C library",
       [](const ExaminedHost& host) { return host.facts.health().c_library(); },
       "build programs and wheels on the host with the oldest one"},
      {"python", "Python",
       [](const ExaminedHost& host) { return host.facts.interpreter_version(); },
       "use one environment on all hosts: --python PATH or --activate VENV"},
      {"module", "module",
       [](const ExaminedHost& host) { return host.facts.health().module_version(); },
       "install the same version on all hosts"},
      {"gpu", "number of accelerators",
       [](const ExaminedHost& host) { return std::to_string(host.facts.accelerators()); },
       "use --nproc-per-node N to start the same number of workers on each"},
      {"gpu", "driver", [](const ExaminedHost& host) { return host.facts.device_view().source(); },
       "install the same driver on all hosts"}};
}

// Reports hosts whose value differs from the most frequent one; in a tie, from the value of the
// host with the lowest ranks.
void check_property(const SharedProperty& property, const std::vector<ExaminedHost>& hosts,
                    Findings& findings) {
  const auto value_of = [&](const ExaminedHost& host) {
    return host.is_up ? property.value(host) : std::string();
  };
  std::map<std::string, std::size_t> counts;
  for (const ExaminedHost& host : hosts)
    if (const std::string value = value_of(host); !value.empty()) ++counts[value];
  if (counts.size() < 2) return;
  std::string usual;
  for (const ExaminedHost& host : hosts) {
    const std::string value = value_of(host);
    if (!value.empty() && (usual.empty() || counts[value] > counts[usual])) usual = value;
  }
  for (const ExaminedHost& host : hosts) {
    const std::string value = value_of(host);
    if (value.empty() || value == usual) continue;
    findings.warn(host, property.check,
                  std::string(property.noun) + " " + RemoteText(value).line() + ", but " +
                      RemoteText(usual).line() + " on " + counted(counts[usual], "other host"),
                  property.fix);
  }
}

// Reports an error of the planner, whose `where` may be host names, folded, or a file.
void add_rejection(const Diagnostic& rejection, const Examination& examined, Findings& findings) {
  std::vector<std::string> names;
  for (const TextPiece& piece : cut_at_commas({rejection.where}, /*outside_brackets=*/true))
    if (expand_host_ranges(piece, BracketOrder::kLastToFirst, names)) break;
  std::vector<std::string> hosts;
  for (const ExaminedHost& host : examined.hosts)
    if (std::find(names.begin(), names.end(), host.name) != names.end()) hosts.push_back(host.name);
  std::string what = rejection.what;
  if (hosts.empty() && !rejection.where.empty()) what = rejection.where + ": " + what;
  if (!rejection.cause.empty()) what += ": " + rejection.cause;
  findings.add(hosts, {true, "start", what, rejection.fix, {}});
}

struct TableColumn {
  std::string title;                                     // Empty: the column is not shown.
  std::function<std::string(const ExaminedHost&)> cell;  // For hosts that are up.
};

std::vector<TableColumn> table_columns(const std::string& module) {
  const auto known = [](const std::string& text) { return text.empty() ? "-" : text; };
  return {
      {"CLOCK", [](const ExaminedHost& host) { return seconds_of(host.clock_ms); }},
      {"ARCH", [](const ExaminedHost& host) { return host.facts.architecture(); }},
      {"LIBC", [=](const ExaminedHost& host) { return known(host.facts.health().c_library()); }},
      {"PYTHON", [=](const ExaminedHost& host) { return known(host.facts.interpreter_version()); }},
      {module,
       [=](const ExaminedHost& host) { return known(host.facts.health().module_version()); }},
      {"GPUS",
       [](const ExaminedHost& host) {
         const std::string& driver = host.facts.device_view().source();
         return std::to_string(host.facts.accelerators()) + (driver.empty() ? "" : " " + driver);
       }},
      {"DISK", [](const ExaminedHost& host) { return size_text(host.facts.health().disk_free()); }},
      {"SHM",
       [](const ExaminedHost& host) { return size_text(host.facts.health().shared_free()); }},
      {"MEMORY",
       [](const ExaminedHost& host) { return size_text(host.facts.health().memory_free()); }},
      {"MEMLOCK",
       [](const ExaminedHost& host) { return limit_text(host.facts.health().locked_limit()); }}};
}

std::string hosts_table(const Examination& examined) {
  const std::vector<TableColumn> columns = table_columns(examined.module);
  std::vector<TextRow> rows{{"HOST", "BY"}};
  for (const TableColumn& column : columns)
    if (!column.title.empty()) rows.front().push_back(column.title);
  for (const ExaminedHost& host : examined.hosts) {
    TextRow& row = rows.emplace_back(TextRow{host.name, host.is_up ? host.transport : "down"});
    for (const TableColumn& column : columns)
      if (!column.title.empty()) row.push_back(host.is_up ? column.cell(host) : "-");
  }
  return text_columns(rows, "");
}

}  // namespace

std::vector<Finding> find_problems(const Examination& examined) {
  Findings findings;
  for (const ExaminedHost& host : examined.hosts) {
    if (!host.is_up) {
      check_reach(host, findings);
      continue;
    }
    check_clock(host, findings);
    check_space(host, findings);
    check_limits(host, findings);
    check_python(host, examined.module, findings);
    check_devices(host, findings);
    check_cgroup(host, findings);
  }
  for (const SharedProperty& property : shared_properties())
    check_property(property, examined.hosts, findings);
  for (const Diagnostic& rejection : examined.rejections)
    add_rejection(rejection, examined, findings);
  for (const Finding& check : examined.checks) findings.add(check.hosts, check);
  return findings.take();
}

std::vector<Finding> space_failures(const CheckSpace& space) {
  ExaminedHost host;
  *host.facts.mutable_health() = space.health();
  host.facts.set_working_directory_error(space.directory_error());
  Findings findings;
  check_space(host, findings);
  std::vector<Finding> failures = findings.take();
  std::erase_if(failures, [](const Finding& finding) { return !finding.has_failed; });
  return failures;
}

std::string findings_text(const Examination& examined, const std::vector<Finding>& findings) {
  std::string text = hosts_table(examined);
  std::size_t failed = 0;
  for (const Finding& finding : findings) {
    failed += finding.has_failed ? 1 : 0;
    const std::string hosts = fold_host_names(finding.hosts);
    text += std::string(finding.has_failed ? "FAIL " : "WARN ") + finding.check +
            (hosts.empty() ? "" : " " + hosts) + ": " + finding.what +
            (finding.fix.empty() ? "" : "\n  fix:   " + finding.fix) + "\n";
  }
  if (findings.empty()) return text + "all checks passed\n";
  return text + counted(failed, "check") + " failed, " +
         counted(findings.size() - failed, "warning") + "\n";
}

boost::json::object findings_object(const Examination& examined,
                                    const std::vector<Finding>& findings) {
  boost::json::array hosts;
  for (const ExaminedHost& host : examined.hosts) {
    boost::json::object object{{"name", host.name}, {"up", host.is_up}};
    if (host.is_up) {
      const HostCheckup& health = host.facts.health();
      const auto text = [](const std::string& bytes) { return RemoteText(bytes).line(); };
      object["transport"] = host.transport;
      object["clock_ahead_s"] = static_cast<double>(host.clock_ms) / 1e3;
      object["architecture"] = text(host.facts.architecture());
      object["c_library"] = text(health.c_library());
      object["kernel"] = text(health.kernel());
      object["interpreter"] = text(host.facts.interpreter());
      object["interpreter_version"] = text(host.facts.interpreter_version());
      object["module_version"] = text(health.module_version());
      object["accelerators"] = host.facts.accelerators();
      object["disk_free"] = health.disk_free();
      object["shm_free"] = health.shared_free();
      object["memory_available"] = health.memory_free();
      object["nofile"] = health.files_limit();
      if (health.locked_limit() != kUnlimited) object["memlock"] = health.locked_limit();
      object["containment"] = text(host.facts.containment());
    }
    hosts.push_back(std::move(object));
  }
  boost::json::array found;
  for (const Finding& finding : findings) {
    boost::json::array names;
    for (const std::string& name : finding.hosts) names.emplace_back(name);
    found.push_back({{"result", finding.has_failed ? "fail" : "warn"},
                     {"check", finding.check},
                     {"hosts", std::move(names)},
                     {"what", finding.what},
                     {"fix", finding.fix}});
  }
  return {{"hosts", std::move(hosts)}, {"findings", std::move(found)}};
}

}  // namespace ivy
