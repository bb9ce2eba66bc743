#ifndef EXAMPLES_ORDER_SERVICE_POSTGRES_DATABASE_HPP
#define EXAMPLES_ORDER_SERVICE_POSTGRES_DATABASE_HPP

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <pqxx/pqxx>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "database.hpp"

namespace order_service {

/// Transactions are READ COMMITTED, PostgreSQL's default, and that is enough here. An UPDATE that
/// meets a row which another transaction is changing waits for that one, and then looks at its
/// WHERE again with the new values. So a conditional UPDATE never goes by what it saw before.
class PostgresDatabase : public Database {
 public:
  explicit PostgresDatabase(const std::string& url)
      : connection_(translated([&] { return std::make_unique<pqxx::connection>(url); })) {
    const auto wait = fmt::format("'{}ms'", longest_database_wait.count());
    translated([&] {
      connection_->set_variable("client_min_messages", "warning");
      connection_->set_variable("search_path", "order_service");
      connection_->set_variable("lock_timeout", wait);
    });
  }

  Result run(const std::string& sql, const std::vector<Value>& values = {}) override {
    return translated([&] {
      pqxx::nontransaction session{*connection_};
      return run_in(session, sql, values);
    });
  }

  std::unique_ptr<Transaction> begin() override {
    return translated([&] { return std::make_unique<PostgresTransaction>(*connection_); });
  }

 private:
  class PostgresTransaction : public Transaction {
   public:
    explicit PostgresTransaction(pqxx::connection& connection) : work_(connection) {}
    Result run(const std::string& sql, const std::vector<Value>& values = {}) override {
      return translated([&] { return run_in(work_, sql, values); });
    }
    void commit() override {
      translated([&] { work_.commit(); });
    }

   private:
    pqxx::work work_;
  };

  static Result run_in(pqxx::transaction_base& session, const std::string& sql,
                       const std::vector<Value>& values) {
    std::vector<std::string> texts;  // the server knows the types, from where they are used
    for (const auto& value : values) {
      const auto* text = std::get_if<std::string>(&value);
      texts.push_back(text ? *text : std::to_string(std::get<std::int64_t>(value)));
    }
    const auto found = session.exec_params(sql, pqxx::prepare::make_dynamic_params(texts));
    Result result;
    for (const auto& row : found) {
      std::vector<std::string> fields;
      for (const auto& field : row) fields.emplace_back(field.c_str());
      result.rows.emplace_back(std::move(fields));
    }
    result.changed = static_cast<int>(found.affected_rows());
    return result;
  }

  template <class Function>
  static std::invoke_result_t<Function> translated(Function&& function) {
    try {
      return std::forward<Function>(function)();
    } catch (const pqxx::in_doubt_error& error) {
      throw CommitInDoubt{error.what()};
    } catch (const pqxx::statement_completion_unknown& error) {
      throw CommitInDoubt{error.what()};
    } catch (const pqxx::transaction_rollback& error) {  // not serializable, or a deadlock
      throw Conflict{error.what()};
    } catch (const pqxx::broken_connection& error) {
      throw DatabaseUnavailable{error.what()};
    } catch (const pqxx::sql_error& error) {
      constexpr auto lock_not_available = "55P03";  // lock_timeout
      constexpr auto admin_shutdown = "57P01";
      if (error.sqlstate() == lock_not_available) throw Conflict{error.what()};
      if (error.sqlstate() == admin_shutdown) throw DatabaseUnavailable{error.what()};
      throw;
    }
  }

  std::unique_ptr<pqxx::connection> connection_;
};

}  // namespace order_service

#endif
