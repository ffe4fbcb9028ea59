"""The catalog's database: tables, migrations, transactions, and who may see which rows."""
