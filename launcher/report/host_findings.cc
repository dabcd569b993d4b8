// SPDX-License-Identifier: Apache-2.0
// find_problems() calls one check_*() per subject for each host, then compares the properties that
// should be equal on all hosts (shared_properties()). The other two functions print the findings as
// a table and as JSON.
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
// Below the first limit a job cannot even write its first log; checkpoints need more than the
// second.
constexpr std::uint64_t kNoDisk = 64 * kMebibyte;
constexpr std::uint64_t kLittleDisk = kGibibyte;
// Containers have 64 MiB; data loaders and ivycomm's segments need more.
constexpr std::uint64_t kLittleShared = 512 * kMebibyte;
// RDMA and pinned GPU memory have to lock this much memory.
constexpr std::uint64_t kLittleLocked = kGibibyte;
constexpr std::uint64_t kFewFiles = 4'096;

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
  void add(const ExaminedHost& host, Finding finding) {
    const auto same = std::find_if(all_.begin(), all_.end(), [&](const Finding& other) {
      return other.check == finding.check && other.what == finding.what &&
             other.has_failed == finding.has_failed;
    });
    if (same != all_.end()) return same->hosts.push_back(host.name);
    finding.hosts = {host.name};
    all_.push_back(std::move(finding));
  }
  void fail(const ExaminedHost& host, const char* check, std::string what, std::string fix) {
    add(host, {true, check, std::move(what), std::move(fix), {}});
  }
  void warn(const ExaminedHost& host, const char* check, std::string what, std::string fix) {
    add(host, {false, check, std::move(what), std::move(fix), {}});
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
  const std::string& wrong = host.facts.working_directory_error();
  if (!wrong.empty()) {
    findings.fail(host, "disk", "working directory: " + RemoteText(wrong).line(),
                  "create it there, or choose another: --wdir DIR");
  } else if (health.disk_error().empty() && health.disk_free() < kLittleDisk) {
    findings.add(host,
                 {health.disk_free() < kNoDisk,
                  "disk",
                  "only " + size_text(health.disk_free()) + " are free in the working directory",
                  "free some space there, or choose another directory: --wdir DIR",
                  {}});
  }
  if (health.shared_size() == 0)
    findings.fail(host, "shm", "/dev/shm does not exist", "mount -t tmpfs tmpfs /dev/shm");
  else if (health.shared_free() < kLittleShared)
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
  if (locks && health.locked_limit() < kLittleLocked)
    findings.warn(
        host, "memlock", "only " + limit_text(health.locked_limit()) + " of memory may be locked",
        "\"* - memlock unlimited\" in /etc/security/limits.conf, or LimitMEMLOCK=infinity "
        "of ivy-agent.service or slurmd.service");
  if (health.files_limit() < kFewFiles)
    findings.warn(host, "nofile",
                  "only " + std::to_string(health.files_limit()) + " open files are allowed",
                  "\"* hard nofile 65536\" in /etc/security/limits.conf");
}

void check_python(const ExaminedHost& host, const std::string& module, Findings& findings) {
  const HostCheckup& health = host.facts.health();
  const std::string& missing = host.facts.interpreter_error();
  if (!missing.empty())
    findings.warn(host, "python", RemoteText(missing).line(), "choose another: --python PATH");
  if (module.empty() || !missing.empty() || !health.module_version().empty()) return;
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
  const std::string& kept = host.facts.containment();
  if (!kept.starts_with("process tree")) return;
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

// Reports hosts whose value differs from the most frequent one.
void check_property(const SharedProperty& property, const std::vector<ExaminedHost>& hosts,
                    Findings& findings) {
  std::map<std::string, std::size_t> counts;
  for (const ExaminedHost& host : hosts)
    if (host.is_up && !property.value(host).empty()) ++counts[property.value(host)];
  if (counts.size() < 2) return;
  const auto usual = std::max_element(
      counts.begin(), counts.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  for (const ExaminedHost& host : hosts) {
    const std::string value = host.is_up ? property.value(host) : "";
    if (value.empty() || value == usual->first) continue;
    findings.warn(host, property.check,
                  std::string(property.noun) + " " + RemoteText(value).line() + ", but " +
                      RemoteText(usual->first).line() + " on most others",
                  property.fix);
  }
}

TextRow table_row(const ExaminedHost& host, const std::string& module) {
  if (!host.is_up) {
    TextRow row{host.name, "down"};
    row.resize(module.empty() ? 11 : 12, "-");
    return row;
  }
  const HostFacts& facts = host.facts;
  const HostCheckup& health = facts.health();
  const auto known = [](const std::string& text) { return text.empty() ? "-" : text; };
  const std::string driver = facts.device_view().source();
  TextRow row{host.name,
              host.transport,
              seconds_of(host.clock_ms),
              facts.architecture(),
              known(health.c_library()),
              known(facts.interpreter_version()),
              std::to_string(facts.accelerators()) + (driver.empty() ? "" : " " + driver),
              size_text(health.disk_free()),
              size_text(health.shared_free()),
              size_text(health.memory_free()),
              limit_text(health.locked_limit())};
  if (!module.empty()) row.insert(row.begin() + 6, known(health.module_version()));
  return row;
}

std::string fixed_lines(const std::string& fix) { return fix.empty() ? "" : "\n  fix:   " + fix; }

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
  for (const Diagnostic& rejection : examined.rejections) {
    ExaminedHost where;
    where.name = rejection.where;
    const std::string cause = rejection.cause.empty() ? "" : ": " + rejection.cause;
    findings.fail(where, "start", rejection.what + cause, rejection.fix);
  }
  return findings.take();
}

std::string findings_text(const Examination& examined, const std::vector<Finding>& findings) {
  TextRow header{"HOST", "BY",   "CLOCK", "ARCH",   "LIBC",   "PYTHON",
                 "GPUS", "DISK", "SHM",   "MEMORY", "MEMLOCK"};
  if (!examined.module.empty()) header.insert(header.begin() + 6, examined.module);
  std::vector<TextRow> rows{header};
  for (const ExaminedHost& host : examined.hosts) rows.push_back(table_row(host, examined.module));
  std::string text = text_columns(rows, "");
  std::size_t failed = 0;
  for (const Finding& finding : findings) {
    failed += finding.has_failed ? 1 : 0;
    const std::string hosts = fold_host_names(finding.hosts);
    text += std::string(finding.has_failed ? "FAIL " : "WARN ") + finding.check +
            (hosts.empty() ? "" : " " + hosts) + ": " + finding.what + fixed_lines(finding.fix) +
            "\n";
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
