#include "launcher/links/srun/srun_step.h"

#include <sys/random.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <span>
#include <utility>

#include "launcher/links/address_lookup.h"
#include "launcher/links/carrier_context.h"
#include "launcher/links/own_interfaces.h"
#include "launcher/links/this_host.h"
#include "proto/contract/build.h"
#include "proto/contract/log.h"
#include "proto/contract/text.h"

extern char** environ;

namespace ivy {
namespace {

using std::chrono::milliseconds;

// `srun --version` asks no server; one that has not answered by then is left alone.
constexpr milliseconds kVersionPatience{3'000};
// Hosts by whose addresses ours is found: all networks of a cluster show at a few.
constexpr std::size_t kMostLookups = 8;
// After the job's end: the step needs a moment to end, then to be ended.
constexpr milliseconds kEndPatience{2'000};
constexpr milliseconds kTermPatience{3'000};
constexpr std::size_t kSaidKeptBytes = 4096;
// A launcher says something twice a second; a host that has heard nothing for half of the shortest
// lease that anybody has by default tries another way.
constexpr milliseconds kSilence{5'000};

std::string random_key() {
  std::string key(kDialKeyBytes, '\0');
  // At most 256 bytes: getrandom never returns fewer then.
  IVY_ASSERT(getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()));
  return key;
}

std::string version_line() {
  return "ivy-node " + std::string(version()) + " build " + std::string(build_name());
}

}  // namespace

SrunStep::SrunStep(CarrierContext& context)
    : context_(context), loop_(context.loop()), key_(random_key()), timer_(context.loop()) {}

SrunStep::~SrunStep() {
  if (door_) door_->close();
  for (const auto& lookup : lookups_) lookup->cancel();
}

void SrunStep::wait_for(const OpenRequest& request, const std::string& host, Guest& guest) {
  Place& place = places_[request.host];
  place.name = host;
  place.waiting = &guest;
  job_id_ = request.job_id;
  boost::asio::post(loop_, [self = shared_from_this(), host = request.host] {
    if (!std::exchange(self->is_started_, true)) return self->start();
    Place& wanted = self->places_[host];
    if (wanted.waiting == nullptr) return;
    if (wanted.parked) return self->deliver(host, std::exchange(wanted.parked, nullptr));
    if (wanted.lost) std::exchange(wanted.waiting, nullptr)->failed(*wanted.lost);
  });
}

void SrunStep::leave(std::uint32_t host, const Guest& guest) {
  Place& place = places_[host];
  if (place.waiting == &guest) place.waiting = nullptr;
  if (place.served == &guest) place.served = nullptr;
}

void SrunStep::deliver(std::uint32_t host, std::shared_ptr<DialBackStream> stream) {
  const auto known = places_.find(host);
  if (known == places_.end()) return stream->stop();
  Place& place = known->second;
  if (!std::exchange(place.has_come, true) && --hosts_to_come_ == 0) srun_->end_input();
  if (place.waiting != nullptr) {
    place.served = std::exchange(place.waiting, nullptr);
    return place.served->came(std::move(stream));
  }
  if (place.parked) place.parked->stop();
  place.parked = std::move(stream);
  if (place.served != nullptr) std::exchange(place.served, nullptr)->came_again();
}

SrunStep::Place* SrunStep::place_of(const std::string& node) {
  for (auto& [host, place] : places_)
    if (place.name == node) return &place;
  return nullptr;
}

void SrunStep::lose(Place& place, const LinkDown& down) {
  if (place.lost) return;
  place.lost = down;
  // A connection that it still has ends by itself.
  if (place.waiting != nullptr) std::exchange(place.waiting, nullptr)->failed(down);
}

void SrunStep::lose_all(const LinkDown& down) {
  const std::shared_ptr<SrunStep> self = shared_from_this();
  std::vector<std::uint32_t> hosts;
  for (const auto& [host, place] : places_) hosts.push_back(host);
  for (const std::uint32_t host : hosts) lose(places_[host], down);
}

void SrunStep::progress(const RemoteText& text) {
  for (auto& [host, place] : places_)
    if (place.waiting != nullptr && !place.has_come) place.waiting->progress(text);
}

void SrunStep::start() {
  if (!context_.options().allocation) {
    return lose_all(LinkDown{LinkFailure::kBootstrap, "this is no Slurm allocation",
                             "start ivyrun inside sbatch or salloc, or leave --transport out"});
  }
  hosts_to_come_ = places_.size();
  progress("asking Slurm for a step");
  learn_version();
  look_up_addresses();
}

void SrunStep::learn_version() {
  SrunChild::Handlers handlers;
  handlers.output_line = [self = shared_from_this()](const std::string& line) {
    if (!self->version_) self->version_ = parse_slurm_version(line);
  };
  handlers.ended = [self = shared_from_this()](const ExitStatus&) {
    self->version_known_ = true;
    self->timer_.cancel();
    self->begin_when_known();
  };
  auto child = SrunChild::start(loop_, {"srun", "--version"},
                                srun_environment(environment_of(environ), true), handlers);
  if (!child.ok()) {
    Error error = child.error();
    error.fix = "srun must be on the PATH where ivyrun is started; or --transport ssh";
    return lose_all(LinkDown::from(LinkFailure::kBootstrap, error));
  }
  version_child_ = *child;
  version_child_->end_input();
  timer_.expires_after(kVersionPatience);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (error || self->version_known_) return;
    self->version_child_->forget();
    self->version_child_->signal(SIGKILL);
    self->version_known_ = true;
    self->begin_when_known();
  });
}

void SrunStep::look_up_addresses() {
  std::vector<std::string> names;
  const std::size_t stride = (places_.size() + kMostLookups - 1) / kMostLookups;
  std::size_t index = 0;
  for (const auto& [host, place] : places_)
    if (index++ % stride == 0) names.push_back(place.name);
  lookups_left_ = names.size();
  for (const std::string& name : names) {
    const auto lookup = std::make_shared<PeerLookup>(loop_);
    lookups_.push_back(lookup);
    lookup->start(
        context_.resolvers(), name, [self = shared_from_this()](const PeerAddresses& addresses) {
          std::vector<std::string>& found = self->found_addresses_;
          const bool is_new = std::find(found.begin(), found.end(), addresses.local) == found.end();
          if (is_new && !addresses.local.empty()) found.push_back(addresses.local);
          --self->lookups_left_;
          self->begin_when_known();
        });
  }
}

void SrunStep::begin_when_known() {
  if (!version_known_ || lookups_left_ > 0 || srun_) return;
  if (const Result<void> opened = open_door(); !opened.ok())
    return lose_all(LinkDown::from(LinkFailure::kBootstrap, opened.error()));
  if (const Result<void> started = start_srun(); !started.ok())
    return lose_all(LinkDown::from(LinkFailure::kBootstrap, started.error()));
  progress("waiting for Slurm to start the step");
}

Result<std::vector<std::string>> SrunStep::own_addresses() const {
  const std::string& interface = context_.options().interface;
  if (!interface.empty()) return addresses_of_interface(interface);
  // Offer a loopback address only if the step has a single host, which may be this one.
  std::vector<std::string> useful;
  for (const std::string& address : found_addresses_)
    if (places_.size() == 1 || !is_loopback(address)) useful.push_back(address);
  if (useful.empty()) useful = addresses_of_interface("").value();
  if (useful.size() > kDialAddressesMax) useful.resize(kDialAddressesMax);
  if (!useful.empty()) return useful;
  return Error{Code::kUnavailable, "this machine has no address that hosts could dial back to",
               "--iface NAME names an interface that has one"};
}

Result<void> SrunStep::open_door() {
  const Options& options = context_.options();
  DialBackDoorSettings settings;
  settings.addresses = IVY_TRY(own_addresses());
  // A single port is MASTER_PORT's.
  if (options.port_low < options.port_high) {
    settings.port_low = options.port_low;
    settings.port_high = options.port_high;
  }
  settings.identity = job_id_;
  settings.key = key_;
  DialBackDoor::Handlers handlers;
  handlers.carrier = [weak = weak_from_this()](std::uint32_t host,
                                               std::shared_ptr<DialBackStream> stream) {
    if (const auto self = weak.lock()) self->deliver(host, std::move(stream));
  };
  handlers.signal = [weak = weak_from_this()](const DialGreeting& greeting) {
    if (const auto self = weak.lock()) self->take_signal(greeting);
  };
  handlers.stranger = [this](const std::string& address, const std::string& why) {
    context_.note("stranger", "warning: dropped a connection of " + address +
                                  " to the port where this job's hosts dial back: " + why);
  };
  door_ = IVY_TRY(DialBackDoor::open(loop_, settings, std::move(handlers)));
  return {};
}

Result<void> SrunStep::start_srun() {
  const Options& options = context_.options();
  DialOrder order;
  order.job_id = job_id_;
  order.key = key_;
  order.silence = options.lease ? std::min(kSilence, *options.lease / 2) : kSilence;
  order.addresses = door_->addresses();
  StepRequest request;
  // Hosts are numbered from 0 without gaps: each has a session.
  for (const auto& [host, place] : places_) request.hosts.push_back(place.name);
  order.hosts = request.hosts;
  order_ = encode_dial_order(order);
  request.version = version_;
  std::vector<std::string> allocated = options.allocation->hosts;
  std::vector<std::string> wanted = request.hosts;
  std::sort(allocated.begin(), allocated.end());
  std::sort(wanted.begin(), wanted.end());
  request.is_whole_allocation = allocated == wanted;
  request.more_words = options.srun_args;
  const Result<NodeUpload*> upload = context_.node_upload();
  request.script =
      step_script(context_.node_binary(), version_line(), upload.ok() ? (*upload)->name() : "none");
  const std::vector<std::string> command = srun_command(request);
  command_text_ = joined(std::span(command).first(command.size() - 3), " ") + " ivy-node dial";
  log::debug("step: " + command_text_);
  SrunChild::Handlers handlers;
  handlers.output_line = [this](const std::string& line) { take_answer(line); };
  handlers.error_line = [this](const std::string& line) { take_error(line); };
  handlers.ended = [self = shared_from_this()](const ExitStatus& status) {
    self->srun_ended(status);
  };
  const std::string& first = request.hosts.front();
  const bool is_here_alone =
      request.hosts.size() == 1 && (first == options.allocation->node_name || is_own_name(first));
  srun_ = IVY_TRY(SrunChild::start(
      loop_, command, srun_environment(environment_of(environ), is_here_alone), handlers));
  srun_->write(order_);
  return {};
}

void SrunStep::take_signal(const DialGreeting& greeting) {
  const auto now = std::chrono::steady_clock::now();
  const auto before = signalled_at_.find(greeting.signal);
  if (before != signalled_at_.end() && now - before->second < kSameSignal) return;
  signalled_at_[greeting.signal] = now;
  log::debug("step: Slurm has sent signal " + std::to_string(greeting.signal) + " to " +
             (greeting.whole_tree ? "every process" : "its tasks"));
  if (on_signal_) on_signal_(greeting.signal, greeting.whole_tree);
}

std::string SrunStep::listening_text() const {
  std::vector<std::string> texts;
  if (!door_) return {};
  for (const DialAddress& address : door_->addresses()) {
    const bool is_v6 = address.address.find(':') != std::string::npos;
    texts.push_back((is_v6 ? "[" + address.address + "]" : address.address) + ":" +
                    std::to_string(address.port));
  }
  return joined(texts, " ");
}

void SrunStep::take_answer(const std::string& line) {
  const std::optional<StepAnswer> answer = parse_step_answer(line);
  if (!answer) return log::debug("step: " + line);
  Place* const place = place_of(answer->node);
  if (place == nullptr) return;
  if (answer->kind == StepAnswer::Kind::kFail) {
    return lose(*place,
                LinkDown{LinkFailure::kBootstrap, "ivy-node cannot be put there: " + answer->text,
                         "give " + place->name +
                             " a directory with room where programs may run: ~/.cache, "
                             "$XDG_CACHE_HOME, /tmp or /dev/shm"});
  }
  const int asked = ++place->bundles_asked[answer->architecture];
  if (place->waiting != nullptr) place->waiting->progress("srun: sending ivy-node");
  // A bundle that one host needs is sent to all: hosts that ask later find it in their input.
  if (asked > bundles_sent_[answer->architecture]) send_bundle(answer->architecture);
}

void SrunStep::send_bundle(const std::string& architecture) {
  int& sent = bundles_sent_[architecture];
  if (sent >= kMostBundlesOfAKind || hosts_to_come_ == 0) return;
  ++sent;
  const Result<NodeUpload*> upload = context_.node_upload();
  const Result<NodeBundle> bundle =
      upload.ok() ? (*upload)->bundle(architecture) : Result<NodeBundle>(upload.error());
  if (!bundle.ok()) {
    for (auto& [host, place] : places_)
      if (!place.has_come && place.bundles_asked.contains(architecture))
        lose(place, LinkDown::from(LinkFailure::kBootstrap, bundle.error()));
    return;
  }
  const std::string_view bytes = *bundle->tar;
  srun_->write(bundle_header(architecture, bytes.size(), bundle->sha256));
  srun_->write(bytes);
  srun_->write(order_);
}

void SrunStep::take_error(const std::string& line) {
  if (is_srun_noise(line)) return;
  log::debug("srun: " + line);
  said_ += line + "\n";
  if (said_.size() > kSaidKeptBytes) said_.erase(0, said_.size() - kSaidKeptBytes);
  if (is_waiting_for_resources(line)) {
    const std::string why = why_srun_waits(line);
    progress("srun waits: " + (why.empty() ? line : why));
    return context_.note("step waits",
                         "note: srun waits" + (why.empty() ? "" : ", " + why) + ": " + line);
  }
  if (const std::optional<HostWords> words = parse_host_words(line)) {
    Place* const place = place_of(words->node);
    if (place == nullptr || place->has_come) return;
    place->words = words->text;
    if (place->waiting != nullptr) place->waiting->progress("dialling back: " + words->text);
    return;
  }
  const std::optional<TasksEnded> ended = parse_tasks_ended(line);
  if (!ended) return;
  for (const std::string& node : ended->nodes) {
    Place* const place = place_of(node);
    if (place == nullptr) continue;
    // Before it has come it says itself why.
    const std::string why =
        place->words.empty() ? "its task of the srun step has ended: " + ended->how : place->words;
    lose(*place,
         LinkDown{place->has_come ? LinkFailure::kNoSuchJob : LinkFailure::kBootstrap, why, ""});
  }
}

void SrunStep::srun_ended(const ExitStatus& status) {
  const Error error = srun_failure(said_, "has ended (" + describe(status) + ")");
  log::debug("step: " + error.message);
  if (done_) {
    timer_.cancel();
    return std::exchange(done_, {})();
  }
  lose_all(LinkDown{hosts_to_come_ > 0 ? LinkFailure::kBootstrap : LinkFailure::kNoSuchJob,
                    error.message, error.fix});
}

void SrunStep::finish(std::function<void()> done) {
  if (!srun_ || srun_->has_ended()) return done();
  done_ = std::move(done);
  if (hosts_to_come_ > 0) srun_->end_input();
  press_on(0);
}

// srun passes a SIGTERM on to the step as an order to end at once.
void SrunStep::press_on(int step) {
  timer_.expires_after(step == 0 ? kEndPatience : kTermPatience);
  timer_.async_wait([self = shared_from_this(), step](const boost::system::error_code& error) {
    if (error || !self->done_) return;
    self->srun_->signal(step == 0 ? SIGTERM : SIGKILL);
    if (step < 2) return self->press_on(step + 1);
    std::exchange(self->done_, {})();
  });
}

}  // namespace ivy
