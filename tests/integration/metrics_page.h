// Reads a server's metrics, as Prometheus does.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>

namespace sis {

// The text behind GET /metrics of an address like 127.0.0.1:9464.
inline std::string MetricsPage(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in server = {};
  server.sin_family = AF_INET;
  server.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &server.sin_addr);
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(connection, reinterpret_cast<const sockaddr*>(&server), sizeof server), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(send(connection, request.data(), request.size(), 0), request.size());
  std::string page;
  char buffer[1 << 16];
  for (ssize_t got; (got = recv(connection, buffer, sizeof buffer, 0)) > 0;) {
    page.append(buffer, got);
  }
  close(connection);
  return page;
}

// Returns the value of a series, written with its labels as on the page; nullopt if it is absent.
inline std::optional<double> MetricValue(const std::string& page, const std::string& series) {
  const size_t line = page.find("\n" + series + " ");
  if (line == std::string::npos) return std::nullopt;
  return std::stod(page.substr(line + series.size() + 2));
}

}  // namespace sis
