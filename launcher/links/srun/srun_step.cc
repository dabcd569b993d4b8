// SPDX-License-Identifier: Apache-2.0
// The first link that waits for a host starts begin(): it collects facts with query_facts(), then
// listen() and start_srun() follow. Once srun runs, hosts dial back (host_dialled()), and its
// output is read line by line: child_output() handles requests for the bundle, and child_error()
// messages about hosts that the step has lost. child_exited() handles an early exit of srun, and
// finish() ends it after the job.
#include "launcher/links/srun/srun_step.h"

#include <sys/random.h>
#include <sys/utsname.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <span>
#include <utility>

#include "launcher/links/address_lookup.h"
#include "launcher/links/remote_greeting.h"
#include "launcher/links/this_host.h"
#include "launcher/links/transport_context.h"
#include "proto/contract/build.h"
#include "proto/contract/log.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/interfaces.h"
#include "proto/os/socket_address.h"

extern char** environ;

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Limit for `srun --version`, which queries no server, and for name servers: answers that take
// longer are not waited for.
constexpr milliseconds kFactsTimeout{3'000};
// Limit of the hosts that are looked up to find this machine's address towards them. A few hosts
// show all networks of a cluster.
constexpr std::size_t kMaxLookups = 8;
// After the end of the job, the step gets this time to exit, and after SIGTERM the second one.
constexpr milliseconds kEndTimeout{2'000};
constexpr milliseconds kTermTimeout{3'000};

// Advice if a host does not dial back.
constexpr char kReachFix[] =
    "it must be able to reach this machine: --iface NAME and --port-range A-B choose the address "
    "and port for it\nor allow more time: --start-timeout";

// Returns the numeric addresses of an interface, IPv4 first, without link-local ones. An empty name
// means all interfaces except loopback. NotFound names the interfaces that exist.
Result<std::vector<std::string>> addresses_of_interface(const std::string& interface) {
  std::vector<std::string> v4;
  std::vector<std::string> v6;
  std::string known;
  for (const InterfaceAddress& own : interface_addresses()) {
    known += (known.empty() ? "" : ", ") + own.interface + " " + own.address;
    const bool is_wanted = interface.empty() ? !own.loopback : interface == own.interface;
    const bool is_v6 = own.address.find(':') != std::string::npos;
    if (is_wanted) (is_v6 ? v6 : v4).push_back(own.address);
  }
  v4.insert(v4.end(), v6.begin(), v6.end());
  if (v4.empty() && !interface.empty())
    return Error{Code::kNotFound, "--iface: no usable address on interface " + interface + " here",
                 "this machine has: " + known};
  return v4;
}

std::string random_key() {
  std::string key(kDialKeyBytes, '\0');
  // getrandom() never returns fewer bytes if at most 256 are requested.
  IVY_ASSERT(getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()));
  return key;
}

std::string version_line() {
  return "ivy-node " + std::string(version()) + " build " + std::string(build_name());
}

}  // namespace

// Facts that are needed to start srun.
struct SrunStep::Facts final : LineChildEvents {
  std::optional<SlurmVersion> version;
  Addresses addresses;  // This machine's addresses on the way to the hosts.
  std::size_t pending = 0;
  Arrival<bool> all_known;

  // Of `srun --version`.
  void child_output(const std::string& line) override {
    if (!version) version = parse_slurm_version(line);
  }
  void child_error(const std::string&) override {}
  void child_exited(const ExitStatus&) override { one_known(); }
  void one_known() {
    if (--pending == 0) all_known(true);
  }
  void add_address(const std::string& address) {
    const bool is_new = std::find(addresses.begin(), addresses.end(), address) == addresses.end();
    if (is_new && !address.empty()) addresses.push_back(address);
  }
};

SrunStep::SrunStep(TransportContext& context)
    : context_(context), beginning_(context.loop()), ending_(context.loop()), key_(random_key()) {}

SrunStep::~SrunStep() {
  if (listener_) listener_->close();
  if (version_child_) version_child_->forget();
  if (srun_) srun_->forget();
}

void SrunStep::wait_for(const OpenRequest& request, const std::string& host, StepClient& client) {
  hosts_.add(request.host, host, client);
  job_id_ = request.job_id;
  if (!std::exchange(is_started_, true)) return beginning_.start(begin());
  boost::asio::post(context_.loop(), [weak = weak_from_this(), number = request.host] {
    if (const auto self = weak.lock()) self->hosts_.serve(number);
  });
}

Awaitable<void> SrunStep::begin() {
  if (!context_.options().allocation) {
    co_return hosts_.lose_all(
        LinkDown{LinkFailure::kBootstrap, "this is not a Slurm allocation",
                 "start ivyrun inside sbatch or salloc, or leave out --transport"});
  }
  hosts_.progress("asking Slurm for a step");
  upload_ = co_await context_.node_upload(beginning_);
  const auto facts = std::make_shared<Facts>();
  Result<void> prepared = query_facts(facts);
  if (prepared.ok()) {
    const auto listen = [facts](const Arrival<bool>& arrive) { facts->all_known = arrive; };
    co_await beginning_.wait_at_most<bool>(kFactsTimeout, listen);
    version_child_->forget();
    version_child_->signal(SIGKILL);
    prepared = start(*facts);
  }
  if (!prepared.ok())
    co_return hosts_.lose_all(LinkDown::from(LinkFailure::kBootstrap, prepared.error()));
  hosts_.progress({"waiting for Slurm to start the step", kReachFix});
}

// Queries srun for its version and name servers for some hosts, all at the same time.
Result<void> SrunStep::query_facts(const std::shared_ptr<Facts>& facts) {
  auto child = LineChild::start(context_.loop(), {"srun", "--version"},
                                srun_environment(environment_of(environ), true), *facts);
  if (!child.ok()) {
    Error error = child.error();
    error.fix = "srun must be on the PATH where ivyrun is started; or use --transport ssh";
    return error;
  }
  version_child_ = *child;
  version_child_->end_input();
  facts->pending = 1;
  const std::vector<std::string> names = hosts_.names();
  const std::size_t stride = (names.size() + kMaxLookups - 1) / kMaxLookups;
  for (std::size_t index = 0; index < names.size(); index += stride) {
    ++facts->pending;
    look_up_addresses(context_.loop(), context_.resolvers(), names[index],
                      [facts](const Result<Addresses>& addresses) {
                        if (addresses.ok()) facts->add_address(route_to(*addresses).local);
                        facts->one_known();
                      });
  }
  return {};
}

Result<void> SrunStep::start(const Facts& facts) {
  IVY_CHECK(listen(facts));
  return start_srun(facts);
}

Result<std::vector<std::string>> SrunStep::own_addresses(const Facts& facts) const {
  const std::string& interface = context_.options().interface;
  if (!interface.empty()) return addresses_of_interface(interface);
  // A loopback address is offered only if the step has a single host, which may be this machine.
  std::vector<std::string> useful;
  for (const std::string& address : facts.addresses)
    if (hosts_.names().size() == 1 || !is_loopback(address)) useful.push_back(address);
  if (useful.empty()) useful = addresses_of_interface("").value();
  if (useful.size() > kDialAddressesMax) useful.resize(kDialAddressesMax);
  if (!useful.empty()) return useful;
  return Error{Code::kUnavailable, "this machine has no address to which the hosts could connect",
               "choose an interface that has one: --iface NAME"};
}

Result<void> SrunStep::listen(const Facts& facts) {
  const Options& options = context_.options();
  DialBackListenerSettings settings;
  settings.addresses = IVY_TRY(own_addresses(facts));
  // A range of one port is left to MASTER_PORT.
  if (options.port_low < options.port_high) {
    settings.port_low = options.port_low;
    settings.port_high = options.port_high;
  }
  settings.keys.hosts = {job_id_, key_};
  listener_ = IVY_TRY(DialBackListener::open(context_.loop(), settings, *this));
  return {};
}

void SrunStep::peer_rejected(const std::string& address, const std::string& why) {
  context_.note("rejected peer", "warning: dropped a connection from " + address +
                                     " to the port to which this job's hosts connect: " + why);
}

Result<void> SrunStep::start_srun(const Facts& facts) {
  const Options& options = context_.options();
  const StepRequest request = step_request(facts);
  DialOrder order;
  order.job_id = job_id_;
  order.key = key_;
  order.silence = dial_back_silence(Transport::kSrun, options.lease);
  order.addresses = listener_->addresses();
  order.hosts = request.hosts;
  order_ = encode_dial_order(order);
  const std::vector<std::string> command = srun_command(request);
  command_text_ = joined(std::span(command).first(command.size() - 3), " ") + " ivy-node dial";
  log::debug("step: " + command_text_);
  const std::string& first = request.hosts.front();
  const bool is_single_host =
      request.hosts.size() == 1 && (first == options.allocation->node_name || is_own_name(first));
  srun_ = IVY_TRY(LineChild::start(
      context_.loop(), command, srun_environment(environment_of(environ), is_single_host), *this));
  srun_->write(order_);
  return {};
}

StepRequest SrunStep::step_request(const Facts& facts) {
  const Options& options = context_.options();
  StepRequest request;
  request.hosts = hosts_.names();
  request.version = facts.version;
  std::vector<std::string> allocated = options.allocation->hosts;
  std::vector<std::string> wanted = request.hosts;
  std::sort(allocated.begin(), allocated.end());
  std::sort(wanted.begin(), wanted.end());
  request.is_whole_allocation = allocated == wanted;
  request.extra_arguments = options.srun_args;
  utsname here{};
  uname(&here);
  request.script = step_script(context_.node().path, here.machine, version_line(),
                               upload_.ok() ? (*upload_)->name() : "none");
  return request;
}

void SrunStep::host_dialled(std::uint32_t host, std::shared_ptr<DialBackStream> stream) {
  hosts_.deliver(host, std::move(stream));
  if (hosts_.missing().empty()) srun_->end_input();
}

void SrunStep::signal_reported(const DialGreeting& greeting) {
  const std::uint64_t now = monotonic_ns();
  const auto [before, is_first] = signalled_at_ns_.try_emplace(greeting.signal, now);
  if (!is_first && std::chrono::nanoseconds(now - before->second) < kSameSignal) return;
  before->second = now;
  log::debug("step: Slurm has sent signal " + std::to_string(greeting.signal) + " to " +
             (greeting.whole_tree ? "every process" : "its tasks"));
  context_.step_signalled(greeting.signal, greeting.whole_tree);
}

std::string SrunStep::listening_text() const {
  return listener_ ? listener_->listening_text() : std::string();
}

void SrunStep::child_output(const std::string& line) {
  const std::optional<StepAnswer> answer = parse_step_answer(line);
  if (!answer) return log::debug("step: " + line);
  StepHost* const host = hosts_.find(answer->node);
  if (host == nullptr) return;
  if (answer->kind == StepAnswer::Kind::kFail) {
    return hosts_.lose(*host, LinkDown{LinkFailure::kBootstrap,
                                       "ivy-node cannot be installed there: " + answer->text,
                                       "on " + host->name +
                                           ", one of these directories needs free space and must "
                                           "allow programs to run: ~/.cache, "
                                           "$XDG_CACHE_HOME, /tmp or /dev/shm"});
  }
  const int request_count = ++host->bundle_requests[answer->architecture];
  if (host->waiting != nullptr)
    host->waiting->host_progress(sending_step("srun: sending ivy-node"));
  // The bundle is sent to all hosts: a host that asks later finds it in its input.
  if (request_count > bundles_sent_[answer->architecture]) send_bundle(answer->architecture);
}

void SrunStep::send_bundle(const std::string& architecture) {
  int& sent = bundles_sent_[architecture];
  if (sent >= kMaxBundlesPerArchitecture || hosts_.missing().empty()) return;
  ++sent;
  const auto read = [upload = upload_, architecture]() -> Result<NodeBundle> {
    if (!upload.ok()) return upload.error();
    return (*upload)->bundle(architecture);
  };
  const auto write = [weak = weak_from_this(), architecture](const Result<NodeBundle>& bundle) {
    if (const auto self = weak.lock()) self->write_bundle(architecture, bundle);
  };
  context_.blocking().run("the bundle of ivy-node", BlockingPool::kNoDeadline, read, write);
}

void SrunStep::write_bundle(const std::string& architecture, const Result<NodeBundle>& bundle) {
  if (!bundle.ok()) {
    for (StepHost* const host : hosts_.missing())
      if (host->bundle_requests.contains(architecture))
        hosts_.lose(*host, LinkDown::from(LinkFailure::kBootstrap, bundle.error()));
    return;
  }
  srun_->write(bundle_header(architecture, bundle->sha256, bundle->bytes, bundle->archive_begin));
  srun_->write(*bundle->content);
  srun_->write(order_);
}

void SrunStep::child_error(const std::string& line) {
  if (is_srun_noise(line)) return;
  log::debug("srun: " + line);
  append_tail(stderr_tail_, line + "\n");
  if (is_waiting_for_resources(line)) {
    const std::string why = why_srun_waits(line);
    hosts_.progress("srun is waiting: " + (why.empty() ? line : why));
    return context_.note("step waits",
                         "note: srun is waiting" + (why.empty() ? "" : ", " + why) + ": " + line);
  }
  if (const std::optional<HostMessage> words = parse_host_message(line)) {
    StepHost* const host = hosts_.find(words->node);
    if (host == nullptr || host->has_connected) return;
    host->words = words->text;
    if (host->waiting != nullptr)
      host->waiting->host_progress({"dialling back: " + words->text, kReachFix});
  } else if (const std::optional<TasksEnded> ended = parse_tasks_ended(line)) {
    take_tasks_ended(*ended);
  }
}

void SrunStep::take_tasks_ended(const TasksEnded& ended) {
  for (const std::string& node : ended.nodes) {
    StepHost* const host = hosts_.find(node);
    if (host == nullptr) continue;
    // A host that has not connected has printed the reason itself.
    const std::string why =
        host->words.empty() ? "its task of the srun step exited: " + ended.how : host->words;
    hosts_.lose(
        *host,
        LinkDown{host->has_connected ? LinkFailure::kNoSuchJob : LinkFailure::kBootstrap, why, ""});
  }
}

void SrunStep::child_exited(const ExitStatus& status) {
  const Error error = srun_failure(stderr_tail_, "exited (" + describe(status) + ")");
  log::debug("step: " + error.message);
  if (done_) {
    ending_.stop();
    return std::exchange(done_, {})();
  }
  hosts_.lose_all(
      LinkDown{hosts_.missing().empty() ? LinkFailure::kNoSuchJob : LinkFailure::kBootstrap,
               error.message, error.fix});
}

void SrunStep::finish(std::function<void()> done) {
  if (!srun_ || srun_->has_ended()) return done();
  done_ = std::move(done);
  if (!hosts_.missing().empty()) srun_->end_input();
  ending_.start(end_srun());
}

// srun ends the step immediately when it gets SIGTERM.
Awaitable<void> SrunStep::end_srun() {
  co_await ending_.sleep(kEndTimeout);
  srun_->signal(SIGTERM);
  co_await ending_.sleep(kTermTimeout);
  srun_->signal(SIGKILL);
  co_await ending_.sleep(kTermTimeout);
  std::exchange(done_, {})();
}

}  // namespace ivy
