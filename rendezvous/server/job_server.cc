#include "rendezvous/server/job_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "proto/os/clock.h"
#include "proto/wire/handshake.h"

namespace ivy::store {
namespace {

using boost::asio::posix::stream_descriptor;

constexpr auto kTick = std::chrono::milliseconds(250);
// The descriptors that a job's process needs besides its connections.
constexpr std::uint64_t kOwnDescriptors = 32;

}  // namespace

JobServer::JobServer(boost::asio::io_context& loop, TokenDirectory tokens, JobServerOptions options)
    : loop_(loop),
      tokens_(std::move(tokens)),
      options_(std::move(options)),
      log_(options_.log),
      listeners_(loop, log_),
      timer_(loop) {
  wait_for_tick();
}

void JobServer::listen(int listening_fd) {
  listeners_.add(listening_fd, [this](Descriptor connection, const sockaddr_storage&) {
    take_client(std::move(connection));
  });
}

void JobServer::stop() {
  alive_.end();
  timer_.cancel();
  listeners_.close();
  while (!greeters_.empty()) forget(greeters_.front());
  for (auto& [id, job] : jobs_) job.process->end();
  jobs_.clear();
}

void JobServer::take_client(Descriptor connection) {
  if (greeters_.size() >= options_.half_open)
    refuse(greeters_.front(), "too many clients that have not greeted");
  auto greeter = std::make_shared<Greeter>(loop_, connection.release());
  greeter->since_ns = monotonic_ns();
  greeter->place = greeters_.insert(greeters_.end(), greeter);
  wait_for_greeting(greeter);
}

void JobServer::wait_for_greeting(const GreeterPointer& greeter) {
  greeter->socket.async_wait(stream_descriptor::wait_read,
                             alive_.guard([this, greeter] { read_greeting(greeter); }));
}

// Reads not a byte more than the greeting: the rest belongs to the job's process.
void JobServer::read_greeting(const GreeterPointer& greeter) {
  std::array<char, kHelloBytes> bytes;
  const ssize_t count = recv(greeter->socket.native_handle(), bytes.data(),
                             kHelloBytes - greeter->greeting.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return wait_for_greeting(greeter);
  if (count <= 0) return forget(greeter);
  greeter->greeting.append(bytes.data(), static_cast<std::size_t>(count));
  const Result<void> begin = check_hello_begin(greeter->greeting);
  if (!begin.ok()) return refuse(greeter, begin.error().message);
  if (greeter->greeting.size() < kHelloBytes) return wait_for_greeting(greeter);
  pass_to_job(greeter);
}

void JobServer::pass_to_job(const GreeterPointer& greeter) {
  const Result<HandshakeHello> hello = decode_hello(greeter->greeting);
  if (!hello.ok()) return refuse(greeter, hello.error().message);
  const Result<Job*> job = job_of(hello->job_id);
  if (!job.ok()) return refuse(greeter, job.error().message);
  Knock knock{Descriptor(greeter->socket.release()), std::move(greeter->greeting)};
  greeters_.erase(greeter->place);
  const Result<void> passed = (*job)->process->pass(std::move(knock));
  if (!passed.ok()) log_("job " + hello->job_id.substr(0, 12) + ": " + passed.error().message);
}

Result<JobServer::Job*> JobServer::job_of(const std::string& id) {
  const Result<TokenStamp> token = tokens_.look(id);
  const auto known = jobs_.find(id);
  if (known != jobs_.end()) {
    if (token.ok() && *token == known->second.token) return &known->second;
    end_job(id, token.ok() ? "its token has changed" : "its token is gone");
  }
  if (!token.ok())
    return Error{token.error().code, "a client of job " + id + ": " + token.error().message};
  if (jobs_.size() >= options_.jobs) {
    return Error{Code::kResourceExhausted, "a client of job " + id + ": there are " +
                                               std::to_string(jobs_.size()) + " jobs already"};
  }
  const auto over = [this, id](const std::string& how) {
    if (!how.empty()) log_("job " + id.substr(0, 12) + ": its store has ended: " + how);
    jobs_.erase(id);
  };
  const JobProcess::Limits limits{options_.memory_bytes, options_.connections + kOwnDescriptors};
  Job& job = jobs_[id];
  job.token = *token;
  job.process = std::make_shared<JobProcess>(loop_, arguments(id), limits, over);
  return &job;
}

std::vector<std::string> JobServer::arguments(const std::string& id) const {
  std::vector<std::string> words = {"ivy-rendezvous", "serve",
                                    "--job",          id,
                                    "--token-file",   tokens_.path_of(id),
                                    "--idle-seconds", std::to_string(options_.idle_seconds),
                                    "--job-memory",   std::to_string(options_.memory_bytes >> 20)};
  if (!options_.wal.empty()) words.insert(words.end(), {"--wal", options_.wal});
  return words;
}

void JobServer::forget(const GreeterPointer& held) {
  const GreeterPointer greeter = held;  // `held` may be the list's own.
  boost::system::error_code ignored;
  greeter->socket.close(ignored);
  greeters_.erase(greeter->place);
}

void JobServer::refuse(const GreeterPointer& greeter, const std::string& because) {
  log_("a client is refused: " + because);
  forget(greeter);
}

// Ends a job whose token is gone. Its contents are useless then: its clients could not authenticate
// any more.
void JobServer::end_job(const std::string& id, const std::string& because) {
  log_("job " + id.substr(0, 12) + " is over: " + because);
  jobs_.at(id).process->end();
  jobs_.erase(id);
  if (options_.wal.empty()) return;
  const std::string path = options_.wal + "/" + id + ".wal";
  for (const std::string& name : {path, path + ".new"}) unlink(name.c_str());
}

void JobServer::wait_for_tick() {
  timer_.expires_after(kTick);
  timer_.async_wait(alive_.guard([this] {
    tick();
    wait_for_tick();
  }));
}

void JobServer::tick() {
  const std::uint64_t now_ns = monotonic_ns();
  while (!greeters_.empty() && now_ns - greeters_.front()->since_ns > options_.greeting_ns)
    refuse(greeters_.front(), "it has not greeted in time");
  std::vector<std::pair<std::string, std::string>> ended;
  for (const auto& [id, job] : jobs_) {
    const Result<TokenStamp> token = tokens_.look(id);
    if (!token.ok()) ended.emplace_back(id, "its token is gone");
    if (token.ok() && *token != job.token) ended.emplace_back(id, "its token has changed");
  }
  for (const auto& [id, because] : ended) end_job(id, because);
  listeners_.retry();
  log_.tick();
}

}  // namespace ivy::store
