// SPDX-License-Identifier: Apache-2.0
// plan_devices() at the end is the sequence, called by make_plan() (plan.cc) when the ranks are
// numbered: it assigns each worker its accelerators, rejects plans that cannot work (check_*), adds
// remarks for the user (note_*), and finally binds workers to cores near their accelerators
// (bind_workers()). Slots are counted before that by device_slots(), which plan.cc calls.
#include "launcher/plan/device_plan.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <tuple>

#include "launcher/options/exports.h"
#include "launcher/options/hosts.h"
#include "launcher/plan/core_split.h"
#include "launcher/plan/topology_order.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

bool is_fake(const Options& options, std::size_t index) {
  return index < options.hosts.size() && options.hosts[index].fake.has_value();
}

// Returns true if --include and --exclude select this accelerator of the host.
bool is_picked(const Options& options, std::size_t index, int device) {
  if (index >= options.hosts.size()) return true;
  const Host& host = options.hosts[index];
  const auto has = [device](const std::vector<int>& devices) {
    return std::find(devices.begin(), devices.end(), device) != devices.end();
  };
  return (host.only_devices.empty() || has(host.only_devices)) && !has(host.excluded_devices);
}

std::size_t devices_per_worker(const Options& options) {
  return static_cast<std::size_t>(options.gpus_per_proc.value_or(1));
}

void add_note(PlanContext& context, std::string words) {
  std::string& all = context.plan.device_text;
  all += (all.empty() ? "" : ", ") + std::move(words);
}

// Returns " on node[01-03]" if there are other hosts.
std::string on(const PlanContext& context, const std::vector<std::string>& names) {
  return context.plan.hosts.size() > 1 ? " on " + fold_host_names(names) : "";
}

bool has_instances(const HostFacts& facts, const std::vector<int>& devices) {
  return std::any_of(devices.begin(), devices.end(), [&](int index) {
    return index < facts.devices_size() && facts.devices(index).is_mig();
  });
}

// A process can use only one MIG instance, the first that it sees, so each must see only its own.
bool sees_own(const Options& options, const HostFacts& facts, const std::vector<int>& devices) {
  if (devices.empty()) return false;
  if (has_instances(facts, devices)) return true;
  if (options.visible != VisibleChoice::kAuto) return options.visible == VisibleChoice::kOwn;
  if (options.profile == Profile::kJax) return false;
  // Scripts of torch and Horovod use device number LOCAL_RANK of the visible ones, which is correct
  // for one device per worker.
  const bool counts = options.profile == Profile::kTorch || options.profile == Profile::kHorovod;
  return !counts || options.gpus_per_proc.has_value();
}

void assign_devices(PlanContext& context) {
  const std::size_t each = devices_per_worker(context.options);
  for (PlannedHost& host : context.plan.hosts) {
    const HostFacts& facts = context.facts(host);
    host.devices = devices_of_host(context.options, context.answers, host.host_index);
    order_devices(context.options, facts, host.devices);
    host.has_part_of_devices = host.devices.size() < facts.accelerators() ||
                               !std::is_sorted(host.devices.begin(), host.devices.end());
    host.sees_own = sees_own(context.options, facts, host.devices);
    for (PlannedWorker& worker : host.workers)
      worker = PlannedWorker{worker.rank, worker.local_rank};
    const std::size_t count = host.devices.size();
    host.shares_devices = count > 0 && host.workers.size() * each > count;
    if (count == 0) continue;
    for (PlannedWorker& worker : host.workers)
      for (std::size_t i = 0; i < std::min(each, count); ++i)
        // In turn, as in scripts that use LOCAL_RANK modulo the number of devices.
        worker.devices.push_back(
            static_cast<int>((static_cast<std::size_t>(worker.local_rank) * each + i) % count));
  }
}

// Returns true if the user requested devices, rather than using whatever is found.
bool is_strict(const Options& options) {
  return options.visible == VisibleChoice::kOwn || options.gpus_per_proc ||
         (options.per_host.written && (options.per_host.kind == PerHost::Kind::kGpu ||
                                       options.per_host.kind == PerHost::Kind::kXpu));
}

std::string slurm_advice(const HostFacts& facts) {
  const std::uint32_t all = facts.device_view().present() + facts.device_view().unusable();
  return "allocate with --gpus-per-node=" + std::to_string(all) +
         " --ntasks-per-node=1 instead of --gpus-per-task: ivyrun starts a host's workers and "
         "assigns accelerators to them";
}

// Returns advice for getting more of the host's accelerators, one line per option.
std::string hidden_advice(const HostFacts& facts, std::size_t needed) {
  const DeviceView& view = facts.device_view();
  const std::size_t all = view.present() + view.unusable();
  std::string advice;
  if (facts.accelerators() < view.present() && !view.mask().empty() && !view.is_slurms_mask()) {
    advice = "\nunset " + std::string(view.mask_variable()) + ", or list more accelerators in it";
  }
  if (!view.hidden_by().empty()) return advice + "\n" + slurm_advice(facts);
  if (!view.is_slurms_mask() || facts.accelerators() >= all) return advice;
  const std::string number = std::to_string(std::min(needed, all));
  return advice + "\nask Slurm for --gpus-per-node=" + number + ", or --gres=gpu:" + number +
         ": the other accelerators of the host do not belong to this job";
}

struct Shortage {
  std::vector<std::string> names;
  const PlannedHost* first = nullptr;
};

// "8 workers on node1 need 8 accelerators, 4 are visible"
std::string need_and_supply(const PlanContext& context, const PlannedHost& host) {
  const std::size_t each = devices_per_worker(context.options);
  const std::size_t workers = host.workers.size();
  std::string text = counted(workers, "worker") + " on " + host.name + " ";
  const std::string need = workers == 1 ? "needs " : "need ";
  text += each == 1 ? need + counted(workers, "accelerator")
                    : "with " + std::to_string(each) + " accelerators each " + need +
                          std::to_string(workers * each);
  return text + ", " + (host.devices.empty() ? "none" : std::to_string(host.devices.size())) +
         (host.devices.size() > 1 ? " are" : " is") + " visible";
}

void reject_shortage(PlanContext& context, const Shortage& shortage) {
  const PlannedHost& host = *shortage.first;
  const HostFacts& facts = context.facts(host);
  const std::size_t slots = host.devices.size() / devices_per_worker(context.options);
  std::string fix = slots > 0 ? "--nproc-per-node " + std::to_string(slots) + "\n" : "";
  fix += host.devices.empty() ? "use --oversubscribe to start them without accelerators"
                              : "use --oversubscribe to share accelerators between workers";
  fix += hidden_advice(facts, host.workers.size() * devices_per_worker(context.options));
  context.reject({.id = "IVY-P011",
                  .what = need_and_supply(context, host),
                  .where = fold_host_names(shortage.names),
                  .cause = hiding_reason(facts),
                  .fix = fix});
}

void check_shortage(PlanContext& context) {
  const std::size_t each = devices_per_worker(context.options);
  const bool strict = is_strict(context.options) && !context.options.oversubscribe;
  // Hosts with equal numbers of workers and accelerators, and the same reason, share one message.
  std::map<std::tuple<std::size_t, std::size_t, std::string>, Shortage> shortages;
  for (const PlannedHost& host : context.plan.hosts) {
    const bool is_short = host.workers.size() * each > host.devices.size();
    const HostFacts& facts = context.facts(host);
    const bool is_hidden = !facts.device_view().mask().empty();
    // A job on hosts without any accelerator probably does not need one.
    if (!is_short || (!strict && (!is_hidden || host.devices.empty()))) continue;
    Shortage& shortage =
        shortages[{host.workers.size(), host.devices.size(), hiding_reason(facts)}];
    shortage.names.push_back(host.name);
    if (shortage.first == nullptr) shortage.first = &host;
  }
  for (const auto& [key, shortage] : shortages) {
    if (strict) {
      reject_shortage(context, shortage);
      continue;
    }
    if (context.options.oversubscribe) continue;
    const HostFacts& facts = context.facts(*shortage.first);
    context.warn({.id = "IVY-P011",
                  .what = need_and_supply(context, *shortage.first) + ", so workers share them",
                  .where = fold_host_names(shortage.names),
                  .cause = hiding_reason(facts),
                  .fix = "--nproc-per-node gpu starts one worker per accelerator" +
                         hidden_advice(facts, shortage.first->workers.size() * each)});
  }
}

// CUDA shows a process only one instance, even if its mask names more.
void check_instances(PlanContext& context) {
  std::vector<std::string> names;
  for (const PlannedHost& host : context.plan.hosts) {
    const auto is_wrong = [&](const PlannedWorker& worker) {
      std::vector<int> devices;
      for (const int device : worker.devices)
        devices.push_back(host.devices[static_cast<std::size_t>(device)]);
      return devices.size() > 1 && has_instances(context.facts(host), devices);
    };
    if (std::any_of(host.workers.begin(), host.workers.end(), is_wrong)) names.push_back(host.name);
  }
  if (names.empty()) return;
  const std::string each = std::to_string(devices_per_worker(context.options));
  context.reject({.id = "IVY-P021",
                  .what = "--gpus-per-proc " + each + ": the accelerators are MIG instances",
                  .where = fold_host_names(names),
                  .cause = "CUDA lets a process use only one MIG instance",
                  .fix = "use --gpus-per-proc 1, or larger instances, or no MIG (nvidia-smi mig)"});
}

// Says why slot `largest` cannot be picked, or why nothing is left, on a host with `all`
// accelerators.
std::string picked_problem(int largest, int all) {
  if (largest < all) return "--exclude leaves no accelerators";
  const std::string missing = "slot " + std::to_string(largest) + " does not exist: ";
  if (all == 0) return missing + "no accelerators were found, and no slots are given";
  return missing + counted(static_cast<std::size_t>(all), "accelerator") +
         (all == 1 ? " is" : " are") + " visible";
}

// Rejects --include h:7 if the host has four accelerators, and --exclude h:0 if it has none.
void check_picked(PlanContext& context) {
  for (const PlannedHost& host : context.plan.hosts) {
    if (host.host_index >= context.options.hosts.size()) continue;
    const Host& written = context.options.hosts[host.host_index];
    const bool includes = !written.only_devices.empty();
    const std::vector<int>& picked = includes ? written.only_devices : written.excluded_devices;
    const int all = static_cast<int>(context.facts(host).accelerators());
    if (picked.empty() || (all == 0 && includes) || is_fake(context.options, host.host_index))
      continue;
    const int largest = *std::max_element(picked.begin(), picked.end());
    if (largest < all && !host.devices.empty()) continue;
    context.reject({.id = "IVY-P011",
                    .what = picked_problem(largest, all),
                    .where = host.name,
                    .fix = "slots are numbered from 0; --dry-run shows the accelerators"});
  }
}

void check_masks(PlanContext& context) {
  // By mask, error, and whether the mask leaves no accelerator.
  std::map<std::tuple<std::string, std::string, bool>, std::vector<std::string>> wrong;
  for (const PlannedHost& host : context.plan.hosts) {
    const HostFacts& facts = context.facts(host);
    const DeviceView& view = facts.device_view();
    if (view.mask_error().empty()) continue;
    wrong[{view.mask(), view.mask_error(), facts.accelerators() == 0}].push_back(host.name);
  }
  for (const auto& [key, names] : wrong) {
    const HostFacts& facts = first_facts(context, names);
    const DeviceView& view = facts.device_view();
    const std::string variable = view.mask_variable();
    Diagnostic problem{.id = "IVY-P017", .where = fold_host_names(names)};
    problem.cause = view.mask_error();
    problem.fix =
        "unset " + variable + " there, or set it to accelerators that exist: -x " + variable + "=0";
    if (facts.accelerators() == 0) {
      problem.what = view.mask() + " lists no accelerator";
      context.reject(std::move(problem));
    } else {
      problem.what = view.mask() + " leaves " + std::to_string(facts.accelerators()) + " of " +
                     counted(view.present(), "accelerator") +
                     ": CUDA hides all devices after an invalid entry";
      context.warn(std::move(problem));
    }
  }
}

void check_views(PlanContext& context) {
  HostsByText disagreements;
  for (const PlannedHost& host : context.plan.hosts) {
    for (const std::string& text : context.facts(host).device_view().disagreements()) {
      std::vector<std::string>& names = disagreements[text];
      // Simulated hosts are one machine, so it is named once.
      if (!is_fake(context.options, host.host_index) || names.empty()) names.push_back(host.name);
    }
  }
  const HostsByText hidden = hosts_by_text(context, [](const HostFacts& facts) {
    const DeviceView& view = facts.device_view();
    const std::uint32_t all = view.present() + view.unusable();
    return view.hidden_by().empty() || facts.accelerators() >= all
               ? std::string()
               : view.hidden_by() + " hides " + std::to_string(all - facts.accelerators()) +
                     " of " + counted(all, "accelerator");
  });
  for (const auto& [text, names] : hidden)
    // If there is a rejection, it already names this cause.
    if (context.rejections.empty())
      context.warn(
          {.id = "IVY-P018",
           .what = text,
           .where = fold_host_names(names),
           .cause = "Slurm assigned accelerators to each task, and ivyrun runs as one of the tasks",
           .fix = slurm_advice(first_facts(context, names))});
  for (const auto& [text, names] : disagreements)
    context.warn(
        {.id = "IVY-P018", .what = "accelerators: " + text, .where = fold_host_names(names)});
}

void note_sharing(PlanContext& context) {
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::string>> sharing;
  for (const PlannedHost& host : context.plan.hosts)
    if (host.shares_devices)
      sharing[{host.workers.size(), host.devices.size()}].push_back(host.name);
  const PlannedHost& first = context.plan.hosts.front();
  const std::size_t all = context.facts(first).accelerators();
  if (is_fake(context.options, first.host_index) && all > 0 && all < context.answers.size())
    add_note(context, std::to_string(context.answers.size()) + " simulated hosts share " +
                          counted(all, "accelerator"));
  for (const auto& [counts, names] : sharing)
    add_note(context, counted(counts.first, "worker") + " share " +
                          counted(counts.second, "accelerator") + on(context, names));
}

// With one rank per accelerator, a host with fewer accelerators than the others has lost some or is
// a different kind of machine.
void note_uneven_hosts(PlanContext& context) {
  const PerHost& per_host = context.options.per_host;
  if (per_host.written && per_host.kind == PerHost::Kind::kNumber) return;
  std::map<std::size_t, std::vector<std::string>, std::greater<>> hosts;
  std::map<std::size_t, std::size_t> present;
  for (const PlannedHost& host : context.plan.hosts) {
    hosts[host.devices.size()].push_back(host.name);
    const DeviceView& view = context.facts(host).device_view();
    if (is_fake(context.options, host.host_index)) continue;
    std::size_t& all = present[host.devices.size()];
    all = std::max<std::size_t>(all, view.present() + view.unusable());
  }
  if (hosts.size() < 2) return;
  std::string text;
  for (const auto& [count, names] : hosts)
    text += (text.empty() ? "" : ", ") + std::to_string(count) +
            (present[count] > count ? " of " + std::to_string(present[count]) : "") + " on " +
            fold_host_names(names);
  add_note(context, "accelerators differ: " + text);
}

void note_visibility(PlanContext& context) {
  const std::size_t each = devices_per_worker(context.options);
  const std::vector<PlannedHost>& hosts = context.plan.hosts;
  const bool any_own =
      std::any_of(hosts.begin(), hosts.end(), [](const PlannedHost& h) { return h.sees_own; });
  const bool any_instances = std::any_of(hosts.begin(), hosts.end(), [&](const PlannedHost& host) {
    return has_instances(context.facts(host), host.devices);
  });
  if (any_own)
    add_note(context, any_instances ? "each sees its own MIG instance"
                      : each == 1   ? "each sees its own accelerator"
                                  : "each sees its own " + std::to_string(each) + " accelerators");
}

std::string gibibytes(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB",
                static_cast<double>(bytes) / static_cast<double>(1ull << 30));
  return text;
}

// A longer list would not be read.
constexpr std::size_t kMaxUsersShown = 4;

void note_users(PlanContext& context) {
  std::vector<std::string> notes;
  std::size_t more = 0;
  for (const PlannedHost& host : context.plan.hosts) {
    const HostFacts& facts = context.facts(host);
    for (const int index : host.devices) {
      if (index >= facts.devices_size() || facts.devices(index).users().empty()) continue;
      const Accelerator& device = facts.devices(index);
      std::string text = "accelerator " + RemoteText(device.mask_entry()).line() +
                         on(context, {host.name}) + " is in use by pid " +
                         std::to_string(device.users(0));
      if (device.users_size() > 1)
        text += " and " + std::to_string(device.users_size() - 1) + " more";
      if (device.used_bytes() > 0) text += " (" + gibibytes(device.used_bytes()) + ")";
      if (notes.size() < kMaxUsersShown)
        notes.push_back(std::move(text));
      else
        ++more;
    }
  }
  for (std::string& text : notes) add_note(context, std::move(text));
  if (more > 0) add_note(context, counted(more, "other accelerator") + " also in use");
}

int near_node(const HostFacts& facts, const PlannedHost& host, const PlannedWorker& worker) {
  if (worker.devices.empty()) return -1;
  const int index = host.devices[static_cast<std::size_t>(worker.devices.front())];
  return index < facts.devices_size() ? facts.devices(index).numa_node() : -1;
}

// Without --bind-to, binds a worker to the processors near its accelerators, unless these are all
// processors.
void bind_near_devices(const HostFacts& facts, const PlannedHost& host, PlannedWorker& worker) {
  CoreList near;
  for (const int device : worker.devices) {
    const int index = host.devices[static_cast<std::size_t>(device)];
    if (index >= facts.devices_size()) return;
    const CoreList cores = parse_core_list(facts.devices(index).cores());
    // A device with unknown cores counts as near to all.
    if (cores.empty()) return;
    near = joined_cores(near, cores);
  }
  if (near.empty() || near == parse_core_list(facts.allowed_cores())) return;
  worker.cores = near;
  const int node = near_node(facts, host, worker);
  if (worker.devices.size() == 1 && node >= 0) worker.memory_node = node;
}

void count_sharers(std::vector<PlannedWorker*>& workers) {
  std::map<CoreList, int> counts;
  for (const PlannedWorker* worker : workers) ++counts[worker->cores];
  for (PlannedWorker* worker : workers) worker->sharers = counts[worker->cores];
}

// Binds the workers of one machine, which belong to one host or to all simulated hosts.
void bind_machine(const PlanContext& context, const std::vector<PlannedHost*>& hosts) {
  const HostFacts& facts = context.facts(*hosts.front());
  std::vector<PlannedWorker*> workers;
  std::vector<int> near_nodes;
  for (PlannedHost* host : hosts) {
    for (PlannedWorker& worker : host->workers) {
      workers.push_back(&worker);
      near_nodes.push_back(near_node(facts, *host, worker));
      if (context.options.bind_to == BindChoice::kAuto) bind_near_devices(facts, *host, worker);
    }
  }
  if (context.options.bind_to == BindChoice::kAuto) return count_sharers(workers);
  const std::vector<CoreShare> shares = split_cores(
      {facts.core_list().begin(), facts.core_list().end()}, context.options.bind_to, near_nodes);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers[i]->cores = shares[i].processors;
    workers[i]->sharers = shares[i].sharers;
    workers[i]->memory_node = shares[i].memory_node;
  }
}

void bind_workers(PlanContext& context) {
  std::vector<PlannedHost*> fake;
  for (PlannedHost& host : context.plan.hosts) {
    if (is_fake(context.options, host.host_index)) {
      fake.push_back(&host);
    } else {
      bind_machine(context, {&host});
    }
  }
  if (!fake.empty()) bind_machine(context, fake);
  if (context.options.bind_to != BindChoice::kAuto) return;
  const bool any_bound =
      std::any_of(context.plan.hosts.begin(), context.plan.hosts.end(), [](const PlannedHost& h) {
        return std::any_of(h.workers.begin(), h.workers.end(),
                           [](const PlannedWorker& w) { return !w.cores.empty(); });
      });
  if (any_bound)
    add_note(context, "bound to the cores near their accelerators (--bind-to none turns this off)");
}

}  // namespace

std::vector<int> devices_of_host(const Options& options, const std::vector<HostAnswer>& answers,
                                 std::size_t index) {
  const int all = static_cast<int>(answers[index].facts.accelerators());
  int begin = 0;
  int end = all;
  const int hosts = static_cast<int>(answers.size());
  const int host = static_cast<int>(index);
  if (is_fake(options, index) && all > 0 && all < hosts) {
    begin = host % all;
    end = begin + 1;
  } else if (is_fake(options, index)) {
    begin = host * (all / hosts) + std::min(host, all % hosts);
    end = begin + all / hosts + (host < all % hosts ? 1 : 0);
  }
  std::vector<int> devices;
  for (int device = begin; device < end; ++device)
    if (is_picked(options, index, device - begin)) devices.push_back(device);
  return devices;
}

int device_slots(const Options& options, const std::vector<HostAnswer>& answers,
                 std::size_t index) {
  return static_cast<int>(devices_of_host(options, answers, index).size() /
                          devices_per_worker(options));
}

std::string hiding_reason(const HostFacts& facts) {
  const DeviceView& view = facts.device_view();
  std::string reason;
  const auto add = [&](const std::string& line) { reason += (reason.empty() ? "" : "\n") + line; };
  if (!view.mask().empty() && facts.accelerators() < view.present())
    add(view.mask() + " hides " + std::to_string(view.present() - facts.accelerators()) + " of " +
        counted(view.present(), "accelerator"));
  if (!view.mask_error().empty()) add(view.mask_error());
  if (!view.hidden_by().empty()) add(view.hidden_by() + " gives each Slurm task its own");
  for (const std::string& note : view.notes()) add(note);
  return reason;
}

void plan_devices(PlanContext& context) {
  context.plan.device_text.clear();
  assign_devices(context);
  check_picked(context);
  check_masks(context);
  check_instances(context);
  if (context.rejections.empty()) check_shortage(context);
  check_views(context);
  note_visibility(context);
  note_sharing(context);
  note_uneven_hosts(context);
  note_users(context);
  bind_workers(context);
}

void add_device_request(const Options& options, const Environment& caller, Hello& hello) {
  hello.set_read_cores(options.bind_to != BindChoice::kAuto &&
                       options.bind_to != BindChoice::kNone);
  const Result<Environment> exports = parse_exports(options.exports, caller);
  if (!exports.ok()) return;
  for (const EnvVariable& variable : *exports) {
    if (!is_device_mask(variable.name)) continue;
    Variable& mask = *hello.add_masks();
    mask.set_name(variable.name);
    mask.set_value(variable.value);
  }
}

}  // namespace ivy
