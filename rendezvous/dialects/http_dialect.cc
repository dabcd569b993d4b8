// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/dialects/http_dialect.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/contract/text.h"

namespace ivy::store {
namespace {

constexpr std::size_t kMaxHeadBytes = 16u << 10;
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kKeys = "http:";
constexpr std::string_view kFinished = "http-finished:";

Error bad_http(const std::string& what) { return Error{Code::kDataLoss, "HTTP: " + what}; }

std::string answer(std::string_view status, std::string_view body) {
  return "HTTP/1.1 " + std::string(status) + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nConnection: close\r\n\r\n" + std::string(body);
}

// Returns the status of a request that the store rejected.
std::string_view status_of(const Error& error) {
  return error.code == Code::kResourceExhausted ? "507 Insufficient Storage"
                                                : "500 Internal Server Error";
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Returns the values of all headers with this name, which is in lower case.
std::vector<std::string> header_values(std::string_view head, std::string_view name) {
  std::vector<std::string> values;
  for (std::size_t at = head.find("\r\n"); at != std::string_view::npos;) {
    const std::size_t begin = at + 2;
    at = head.find("\r\n", begin);
    const std::string_view line =
        head.substr(begin, at == std::string_view::npos ? at : at - begin);
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos && lower_case(line.substr(0, colon)) == name)
      values.emplace_back(trimmed(line.substr(colon + 1)));
  }
  return values;
}

// Accepts "10.0.0.1", "10.0.0.1:80", "[fd00::1]:80" and "localhost:80".
bool is_address_or_localhost(std::string_view host) {
  if (host.starts_with('[')) return host.find(']') != std::string_view::npos;
  host = host.substr(0, host.find(':'));
  return lower_case(host) == "localhost" ||
         (!host.empty() && host.find_first_not_of("0123456789.") == std::string_view::npos);
}

// "/global/3" and "/global/3/x" belong to member 3 of the scope "/global/".
std::string scope_of(const std::string& path) { return path.substr(0, path.find('/', 1) + 1); }

}  // namespace

bool begins_http(std::string_view bytes) {
  return bytes.starts_with("GET /") || bytes.starts_with("PUT /") || bytes.starts_with("DELETE /");
}

HttpDialect::~HttpDialect() {
  if (client_ != 0) engine_.leave(client_);
}

Result<void> HttpDialect::receive(std::string_view bytes, std::uint64_t now_ns, std::string& unsent,
                                  Replies& out) {
  if (is_over_) return {};
  buffer_.append(bytes);
  if (client_ == 0) {
    ClientInfo info;
    info.space = Space::kTorch;
    info.generation = engine_.generation();
    info.address = address_;
    client_ = IVY_TRY(engine_.join(std::move(info), now_ns));
  }
  if (!head_) {
    const std::size_t end = buffer_.find(kHeadEnd);
    if (end == std::string::npos && buffer_.size() <= kMaxHeadBytes) return {};
    if (const std::optional<Rejection> rejection = read_head()) {
      is_over_ = true;
      unsent += answer(rejection->status, rejection->why + "\n");
      return bad_http(rejection->why);
    }
  }
  if (buffer_.size() < head_->body_at + head_->body_bytes) return {};
  is_over_ = true;
  std::string body = buffer_.substr(head_->body_at, head_->body_bytes);
  buffer_ = {};
  Result<void> served = serve(std::move(body), Turn{now_ns, out}, unsent);
  if (!served.ok()) unsent += answer(status_of(served.error()), served.error().message + "\n");
  return served;
}

std::optional<HttpDialect::Rejection> HttpDialect::read_head() {
  constexpr std::string_view kBad = "400 Bad Request";
  const std::size_t end = buffer_.find(kHeadEnd);
  if (end == std::string::npos || end > kMaxHeadBytes)
    return Rejection{"431 Request Header Fields Too Large", "the header is too long"};
  const std::string_view head = std::string_view(buffer_).substr(0, end);
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const std::size_t path = line.find(' ') + 1;
  const std::size_t version = line.find(' ', path);
  if (path == 0 || version == std::string_view::npos)
    return Rejection{kBad, "the request line is invalid"};
  Head read;
  read.method = line.substr(0, path - 1);
  read.path = line.substr(path, version - path);
  read.body_at = end + kHeadEnd.size();
  if (!read.path.starts_with('/') || read.path.size() > kMaxKeyBytes / 2 ||
      scope_of(read.path).size() < 2)
    return Rejection{kBad, "the path must be /SCOPE/KEY"};
  // A chunked body would be read with the wrong length.
  if (!header_values(head, "transfer-encoding").empty())
    return Rejection{"501 Not Implemented",
                     "Transfer-Encoding is not supported: send Content-Length"};
  const std::vector<std::string> hosts = header_values(head, "host");
  if (hosts.size() > 1 || (hosts.empty() && line.substr(version + 1) != "HTTP/1.0"))
    return Rejection{kBad, "exactly one Host header is required"};
  if (!hosts.empty() && !is_address_or_localhost(hosts.front()))
    return Rejection{"421 Misdirected Request", "the Host header is not a numeric address"};
  const std::vector<std::string> lengths = header_values(head, "content-length");
  const std::optional<std::size_t> length =
      lengths.empty() ? 0 : to_number<std::size_t>(lengths.front());
  if (lengths.size() > 1 || !length) return Rejection{kBad, "invalid Content-Length"};
  if (*length > kMaxValueBytes) return Rejection{"413 Content Too Large", "the body is too long"};
  read.body_bytes = *length;
  head_ = std::move(read);
  return std::nullopt;
}

Result<void> HttpDialect::serve(std::string given, Turn turn, std::string& unsent) {
  const std::string key = std::string(kKeys) + head_->path;
  std::string status = "200 OK";
  std::string body;
  if (head_->method == "PUT") {
    IVY_CHECK(execute(Set{key, std::move(given)}, turn));
  } else if (head_->method == "GET") {
    Result<ReplyBody> found = execute(Get{key, std::nullopt}, turn);
    if (!found.ok() && found.error().code != Code::kNotFound) return found.error();
    if (found.ok())
      body = std::move(std::get<Value>(*found).bytes);
    else
      status = "404 Not Found";
  } else if (head_->method == "DELETE") {
    IVY_CHECK(finish_member(head_->path, turn));
  } else {
    status = "405 Method Not Allowed";
  }
  unsent += answer(status, body);
  return {};
}

Result<void> HttpDialect::finish_member(const std::string& path, Turn turn) {
  IVY_CHECK(execute(Set{std::string(kFinished) + path, "1"}, turn));
  const std::string scope = scope_of(path);
  const auto listed = [&](std::string_view space) -> Result<std::vector<std::string>> {
    return std::get<Keys>(IVY_TRY(execute(List{std::string(space) + scope, 0, {}}, turn))).keys;
  };
  const std::vector<std::string> keys = IVY_TRY(listed(kKeys));
  const std::vector<std::string> finished = IVY_TRY(listed(kFinished));
  std::set<std::string> members;
  for (const std::string& key : keys) {
    const std::string name = key.substr(kKeys.size() + scope.size());
    members.insert(name.substr(0, name.find('/')));
  }
  if (finished.size() < members.size()) return {};
  for (const std::vector<std::string>* all : {&keys, &finished})
    for (const std::string& key : *all) IVY_CHECK(execute(Delete{key}, turn));
  return {};
}

// Executes the request, and returns its answer after removing it from `turn.out`, because it is not
// for the client.
Result<ReplyBody> HttpDialect::execute(Request request, Turn turn) {
  const RequestId id = ++last_;
  engine_.apply(client_, id, std::move(request), turn.now_ns, turn.out);
  const auto own = std::find_if(turn.out.begin(), turn.out.end(), [&](const Reply& reply) {
    return reply.client == client_ && reply.request == id;
  });
  IVY_ASSERT(own != turn.out.end());  // None of these requests waits.
  ReplyBody body = std::move(own->body);
  turn.out.erase(own);
  if (Error* const error = std::get_if<Error>(&body)) return std::move(*error);
  return body;
}

}  // namespace ivy::store
