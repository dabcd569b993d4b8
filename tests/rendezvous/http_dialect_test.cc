// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/dialects/http_dialect.h"

#include <gtest/gtest.h>

#include <string>

#include "rendezvous/dialects/connection.h"

namespace ivy::store {
namespace {

// Horovod's client, with one connection for each request, like on the server.
struct HttpClient {
  explicit HttpClient(Engine& engine) : store(engine) {}

  std::string say(std::string_view bytes) {
    const std::unique_ptr<Connection> connection = make_torch_connection(store, "10.0.0.1:9");
    Replies replies;
    EXPECT_TRUE(connection->receive(bytes, 1, replies).ok());
    EXPECT_TRUE(replies.empty());
    EXPECT_TRUE(connection->is_over());
    return connection->unsent;
  }
  std::string put(const std::string& path, const std::string& body) {
    return say("PUT " + path + " HTTP/1.1\r\nHost: 10.0.0.1\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  std::string get(const std::string& path) {
    return say("GET " + path + " HTTP/1.1\r\nHost: 10.0.0.1:80\r\n\r\n");
  }
  std::string finish(const std::string& path) {
    return say("DELETE " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }

  Engine& store;
};

std::string reply(const std::string& status, const std::string& body = "") {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nConnection: close\r\n\r\n" + body;
}
const std::string kNone = reply("404 Not Found");
const std::string kDone = reply("200 OK");

TEST(HttpDialectTest, KeepsValuesByScopeAndKey) {
  Engine engine;
  HttpClient client(engine);
  EXPECT_EQ(client.get("/global/0"), kNone);
  EXPECT_EQ(client.put("/global/0", std::string("a\0\r\n\r\nb", 7)), kDone);
  EXPECT_EQ(client.get("/global/0"), reply("200 OK", std::string("a\0\r\n\r\nb", 7)));
  EXPECT_EQ(client.get("/local_n0/0"), kNone);
}

TEST(HttpDialectTest, TheLastMemberEmptiesAScope) {
  Engine engine;
  HttpClient client(engine);
  for (const char* path : {"/global/0", "/global/1", "/local_n0/0"}) client.put(path, "x");
  EXPECT_EQ(client.finish("/global/0"), kDone);
  EXPECT_NE(client.get("/global/0"), kNone);
  EXPECT_EQ(client.finish("/global/0"), kDone);
  EXPECT_NE(client.get("/global/1"), kNone) << "the same member finished twice";
  EXPECT_EQ(client.finish("/global/1"), kDone);
  EXPECT_EQ(client.get("/global/0"), kNone);
  EXPECT_NE(client.get("/local_n0/0"), kNone);
  client.put("/global/0", "again");
  EXPECT_EQ(client.finish("/global/0"), kDone);
  EXPECT_EQ(client.get("/global/0"), kNone);
}

TEST(HttpDialectTest, ParsesARequestInAnyFragments) {
  Engine engine;
  const std::unique_ptr<Connection> connection = make_torch_connection(engine, "10.0.0.1:9");
  Replies replies;
  const std::string text = "PUT /s/k HTTP/1.1\r\nhOST:10.0.0.1 \r\ncontent-LENGTH:  3\r\n\r\nabc";
  ASSERT_TRUE(connection->receive(text.substr(0, 8), 1, replies).ok());
  for (const char byte : text.substr(8)) {
    EXPECT_FALSE(connection->is_over());
    EXPECT_TRUE(connection->receive(std::string(1, byte), 1, replies).ok());
  }
  EXPECT_TRUE(connection->is_over());
  EXPECT_EQ(connection->unsent, kDone);
  EXPECT_EQ(HttpClient(engine).say("GET /s/k HTTP/1.0\r\n\r\n"), reply("200 OK", "abc"));
}

// Bounds memory: a burst of requests on one connection must not be answered all at once.
TEST(HttpDialectTest, AnswersOneRequestPerConnection) {
  Engine engine;
  HttpClient(engine).put("/s/k", std::string(1 << 20, 'x'));
  const std::unique_ptr<Connection> connection = make_torch_connection(engine, "10.0.0.1:9");
  std::string burst;
  for (int i = 0; i < 1000; ++i) burst += "GET /s/k HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n";
  Replies replies;
  EXPECT_TRUE(connection->receive(burst, 1, replies).ok());
  EXPECT_TRUE(connection->receive(burst, 1, replies).ok());
  EXPECT_LT(connection->unsent.size(), (1u << 20) + 1024);
  EXPECT_EQ(connection->kept_bytes(), 0u);
  EXPECT_TRUE(connection->is_over());
}

TEST(HttpDialectTest, ReportsAFullStore) {
  EngineLimits limits;
  limits.keys = 1;
  Engine engine(limits);
  HttpClient(engine).put("/s/k", "x");
  const std::unique_ptr<Connection> connection = make_torch_connection(engine, "10.0.0.1:9");
  Replies replies;
  const std::string put = "PUT /s/l HTTP/1.1\r\nHost: 10.0.0.1\r\nContent-Length: 1\r\n\r\nx";
  EXPECT_FALSE(connection->receive(put, 1, replies).ok());
  EXPECT_TRUE(connection->unsent.starts_with("HTTP/1.1 507 ")) << connection->unsent;
  EXPECT_TRUE(connection->is_over());
}

TEST(HttpDialectTest, RejectsInvalidRequests) {
  struct Row {
    std::string text;
    const char* status;
  };
  const std::string host = "Host: 10.0.0.1\r\n";
  const std::vector<Row> rows = {
      {"GET /k HTTP/1.1\r\n" + host + "\r\n", "400"},
      {"GET /s/k HTTP/1.1\r\n\r\n", "400"},
      {"GET /s/k HTTP/1.1\r\n" + host + host + "\r\n", "400"},
      {"GET /s/k HTTP/1.1\r\nHost: evil.example:29500\r\n\r\n", "421"},
      {"PUT /s/k HTTP/1.1\r\n" + host + "Content-Length: 99999999999\r\n\r\n", "413"},
      {"PUT /s/k HTTP/1.1\r\n" + host + "Content-Length: x\r\n\r\n", "400"},
      {"PUT /s/k HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "400"},
      {"PUT /s/k HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "501"},
      {"GET /" + std::string(20'000, 'x'), "431"},
  };
  for (const Row& row : rows) {
    Engine engine;
    const std::unique_ptr<Connection> connection = make_torch_connection(engine, "10.0.0.1:9");
    Replies replies;
    EXPECT_FALSE(connection->receive(row.text, 1, replies).ok()) << row.text.substr(0, 80);
    EXPECT_EQ(connection->unsent.substr(9, 3), row.status) << row.text.substr(0, 80);
    EXPECT_EQ(engine.key_count(), 0u);
  }
}

}  // namespace
}  // namespace ivy::store
